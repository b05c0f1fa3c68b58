//! stream.c in Rust: time steps that are written from two buffers in turn.
//!
//! With verbs only. The ranks are threads of one process, which share a session. `cargo run --release -p forebay-verbs
//! --example kernel-stream -- pool:NAME [RANKS [STEPS [default|declared]]]`

use forebay_iov::{Batch, Collection, Failure, Key, Options, Order, Running, Session, Workspace};
use std::sync::Arc;
use std::time::Instant;

const STEP: usize = 4 << 20;
const DECLARED: &str = "consistency=session,mutability=append,parallelism=exclusive";

/// Computes for a while: what the program does besides I/O.
fn compute(cells: &mut [f64]) {
    for _ in 0..500 {
        let mut left = cells[0];
        for i in 1..cells.len() - 1 {
            let here = cells[i];
            cells[i] = 0.25 * left + 0.5 * here + 0.25 * cells[i + 1];
            left = here;
        }
    }
}

/// The word that every 512 bytes of a step begin with.
fn word(rank: usize, at: usize) -> [u8; 8] {
    ((rank as u64) << 48 ^ at as u64).to_le_bytes()
}

fn finish(writing: Option<Running>) -> forebay_iov::Result<()> {
    let Some(writing) = writing else {
        return Ok(());
    };
    writing.wait(None)?;
    writing.error().map_or(Ok(()), Err)
}

fn stream(
    workspace: &Workspace,
    rank: usize,
    steps: usize,
    controls: &str,
) -> forebay_iov::Result<()> {
    let options = Options {
        controls: forebay_iov::read_controls(controls)?,
        ..Options::default()
    };
    let name = format!("steps.{rank}");
    let file = Collection::create(workspace, &name, &options)?;
    let mut cells = vec![0.0; 4000];
    // A buffer is the batch's until it has ended; then the last use of it is ours.
    let mut buffers = [Arc::new(vec![0; STEP]), Arc::new(vec![0; STEP])];
    let mut writing = None;
    for step in 0..steps {
        compute(&mut cells);
        let buffer = Arc::get_mut(&mut buffers[step % 2]).expect("its batch has ended");
        for (i, block) in buffer.chunks_mut(512).enumerate() {
            block[..8].copy_from_slice(&word(rank, step * STEP + i * 512));
        }
        finish(writing.take())?;
        let mut batch = Batch::new(workspace.session(), Failure::Stop, Order::Free);
        batch.append(&file, Bytes(buffers[step % 2].clone()))?;
        writing = Some(batch.start()?);
    }
    finish(writing)?;
    file.close()?;

    let file = Collection::open(workspace, Key::Name(&name))?;
    let mut bytes = vec![0; STEP];
    for step in 0..steps {
        assert_eq!(file.read(&mut bytes, (step * STEP) as u64)?, STEP);
        for (i, block) in bytes.chunks(512).enumerate() {
            assert_eq!(block[..8], word(rank, step * STEP + i * 512), "step {step}");
        }
    }
    file.close()?;
    Collection::delete(workspace, Key::Name(&name))
}

/// Bytes that the batch and the program share.
struct Bytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let said: Vec<String> = std::env::args().collect();
    let number = |at: usize, default| said.get(at).map_or(Ok(default), |n| n.parse::<usize>());
    let place = said
        .get(1)
        .ok_or("usage: stream PLACE [RANKS [STEPS [default|declared]]]")?;
    let (ranks, steps) = (number(2, 1)?, number(3, 20)?);
    let controls = match said.get(4).map(String::as_str) {
        Some("declared") => DECLARED,
        _ => "",
    };
    let session = Session::open(place)?;
    let workspace = Workspace::create(&session, "stream-rs", &Default::default())?;
    let (began, to) = (Instant::now(), &workspace);
    std::thread::scope(|scope| {
        let rank = |rank| scope.spawn(move || stream(to, rank, steps, controls));
        let all: Vec<_> = (0..ranks).map(rank).collect();
        all.into_iter()
            .try_for_each(|r| r.join().expect("a rank panicked"))
    })?;
    let rate = (ranks * steps) as f64 / began.elapsed().as_secs_f64();
    println!("stream-rs steps={rate:.1}/s ranks={ranks} verbs={place} controls={controls}");
    Ok(workspace.delete()?)
}
