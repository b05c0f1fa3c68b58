//! Tests of the advisor with the I/O of the kernels in `examples/kernels`: the advisor proposes the
//! controls that each kernel declares.
//!
//! The declared controls are read from a kernel's source. Further proposals are listed in the
//! tests: these proposals fit the run, too, but the kernel doesn't declare them because doing so
//! would gain nothing.

mod programs;

use forebay_controls::Rules;
use forebay_report::advise::{Advice, Proposal, advise};
use programs::*;
use std::collections::BTreeSet;
use std::path::Path;

const RANKS: u32 = 4;

/// Returns the controls that a kernel declares.
fn declared(kernel: &str) -> BTreeSet<String> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/kernels");
    let source = std::fs::read_to_string(kernels.join(format!("{kernel}.c"))).unwrap();
    let from = source.find(".declares = \"").unwrap() + ".declares = \"".len();
    let text = source[from..].split('"').next().unwrap();
    text.split(',').map(str::to_owned).collect()
}

fn proposed(advice: &Advice) -> BTreeSet<String> {
    let all = advice.proposals.iter().chain(&advice.fitting);
    let controls = all.filter(|p| p.toml.is_some());
    controls
        .map(|p| format!("{}={}", p.control, p.value))
        .collect()
}

/// Checks that the proposals for a kernel's files are the controls that the kernel declares, and
/// `more`.
fn check(kernel: &str, programs: &Programs, more: &[&str]) -> Advice {
    let run = programs.run();
    assert_eq!(run.incomplete, Vec::<String>::new());
    let advice = advise(&run);
    let mut expected = declared(kernel);
    expected.extend(more.iter().map(|m| (*m).to_owned()));
    assert_eq!(proposed(&advice), expected, "{kernel}: {advice:#?}");
    // All rules together are a valid file for a pool, and so is each rule.
    for report_first in [false, true] {
        Rules::parse(&advice.rules(report_first), "/fb").unwrap();
    }
    for proposal in advice.proposals.iter().chain(&advice.fitting) {
        let one = Rules::parse(proposal.toml.as_deref().unwrap(), "/fb").unwrap();
        let controls = one.all()[0].controls.to_string();
        assert_eq!(controls, format!("{}={}", proposal.control, proposal.value));
        assert!(!proposal.why.is_empty() && !proposal.forbids.is_empty());
    }
    for proposal in &advice.proposals {
        let saves = &proposal.saves;
        assert!(
            saves.is_room || saves.seconds.is_some_and(|s| s > 0.0),
            "{proposal:#?}"
        );
    }
    advice
}

#[test]
fn ior_easy() {
    let mut p = Programs::on(RANKS);
    let name = |rank: u32| format!("/ior-easy/file.{rank}");
    let files: Vec<u64> = (0..RANKS).map(|r| p.open(r, &name(r), made())).collect();
    for piece in 0..8 {
        (0..RANKS).for_each(|r| p.write(r, files[r as usize], piece * MIB, MIB));
    }
    (0..RANKS).for_each(|r| p.close(r, files[r as usize]));
    let next = |r: u32| (r + 1) % RANKS;
    let files: Vec<u64> = (0..RANKS)
        .map(|r| p.open(r, &name(next(r)), rdonly()))
        .collect();
    for piece in 0..8 {
        (0..RANKS).for_each(|r| p.read(r, files[r as usize], piece * MIB, MIB));
    }
    (0..RANKS).for_each(|r| p.close(r, files[r as usize]));
    check(
        "ior_easy",
        &p,
        &["mutability=immutable", "temporality=once"],
    );
}

#[test]
fn ior_hard() {
    const RECORD: u64 = 47_008;
    let mut p = Programs::on(RANKS);
    let file = p.open(0, "/ior-hard/shared", made());
    p.close(0, file);
    (0..RANKS).for_each(|r| _ = p.open(r, "/ior-hard/shared", made()));
    let place = |i: u64, rank: u32| (i * u64::from(RANKS) + u64::from(rank)) * RECORD;
    for i in 0..100 {
        (0..RANKS).for_each(|r| p.write(r, file, place(i, r), RECORD));
    }
    (0..RANKS).for_each(|r| p.close(r, file));
    (0..RANKS).for_each(|r| _ = p.open(r, "/ior-hard/shared", rdonly()));
    for i in 0..100 {
        (0..RANKS).for_each(|r| p.read(r, file, place(i, (r + 1) % RANKS), RECORD));
    }
    (0..RANKS).for_each(|r| p.close(r, file));
    let advice = check("ior_hard", &p, &["temporality=once"]);
    let commit = advice
        .proposals
        .iter()
        .find(|p| p.control == "consistency")
        .unwrap();
    // 300 writes of together 13.4 MiB went to another node. 27 messages would have been enough.
    let saved = commit.saves.seconds.unwrap();
    let expected = (300.0 - 27.0) * THERE as f64 / 1e9;
    assert!(
        (saved - expected).abs() < expected / 50.0,
        "{saved} s, {expected} s"
    );
}

#[test]
fn strided() {
    const PIECE: u64 = 2048;
    let mut p = Programs::on(RANKS);
    let file = p.open(0, "/strided/matrix", made());
    p.close(0, file);
    (0..RANKS).for_each(|r| _ = p.open(r, "/strided/matrix", made()));
    let rows = 128 * u64::from(RANKS);
    for row in 0..4 * rows {
        (0..RANKS).for_each(|r| {
            p.write(
                r,
                file,
                (row * u64::from(RANKS) + u64::from(r)) * PIECE,
                PIECE,
            )
        });
    }
    (0..RANKS).for_each(|r| p.close(r, file));
    (0..RANKS).for_each(|r| _ = p.open(r, "/strided/matrix", rdonly()));
    let share = rows * PIECE;
    for round in 0..4 {
        let begin = round * rows * u64::from(RANKS) * PIECE;
        (0..RANKS).for_each(|r| p.read(r, file, begin + u64::from(r) * share, share));
    }
    (0..RANKS).for_each(|r| p.close(r, file));
    check("strided", &p, &["temporality=once"]);
}

#[test]
fn chunks() {
    let mut p = Programs::on(RANKS);
    let file = p.open(0, "/chunks/dump", made());
    p.close(0, file);
    (0..RANKS).for_each(|r| _ = p.open(r, "/chunks/dump", made()));
    (0..RANKS).for_each(|r| p.write(r, file, u64::from(r) * 8 * MIB, 8 * MIB));
    (0..RANKS).for_each(|r| p.close(r, file));
    (0..RANKS).for_each(|r| _ = p.open(r, "/chunks/dump", rdonly()));
    (0..RANKS).for_each(|r| p.read(r, file, u64::from((r + 1) % RANKS) * 8 * MIB, 8 * MIB));
    (0..RANKS).for_each(|r| p.close(r, file));
    check("chunks", &p, &[]);
}

#[test]
fn checkpoint() {
    let mut p = Programs::on(RANKS);
    let name = |rank: u32, n: u32| format!("/checkpoint/checkpoint.{rank}.{n}");
    for n in 0..5 {
        for r in 0..RANKS {
            let file = p.open(r, &name(r, n), made());
            p.write(r, file, 0, 8 * MIB);
            p.close(r, file);
        }
    }
    for r in 0..RANKS {
        let file = p.open(r, &name(r, 4), rdonly());
        p.read(r, file, 0, 8 * MIB);
        p.close(r, file);
    }
    check("checkpoint", &p, &["parallelism=exclusive"]);
}

#[test]
fn samples() {
    let mut p = Programs::on(RANKS);
    let name = |n: u32| format!("/samples/sample.{n:06}");
    const FILES: u32 = 240;
    for n in 0..FILES {
        let file = p.open(n % RANKS, &name(n), made());
        p.write(n % RANKS, file, 0, 16 << 10);
        p.close(n % RANKS, file);
    }
    let (own, mut random) = (FILES / RANKS, 1u64);
    for _epoch in 0..3 {
        let mut order: Vec<u32> = (0..FILES).collect();
        for i in (1..order.len()).rev() {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            order.swap(i, (random >> 33) as usize % (i + 1));
        }
        for i in 0..own {
            for r in 0..RANKS {
                let n = order[(r * own + i) as usize];
                let file = p.open(r, &name(n), rdonly());
                p.read(r, file, 0, 16 << 10);
                p.close(r, file);
            }
        }
    }
    check("samples", &p, &[]);
}

#[test]
fn stream() {
    let mut p = Programs::on(RANKS);
    let name = |rank: u32| format!("/stream/steps.{rank}");
    let files: Vec<u64> = (0..RANKS).map(|r| p.open(r, &name(r), made())).collect();
    for step in 0..5 {
        (0..RANKS).for_each(|r| p.write(r, files[r as usize], step * 4 * MIB, 4 * MIB));
    }
    (0..RANKS).for_each(|r| p.close(r, files[r as usize]));
    for r in 0..RANKS {
        let file = p.open(r, &name(r), rdonly());
        (0..5).for_each(|step| p.read(r, file, step * 4 * MIB, 4 * MIB));
        p.close(r, file);
    }
    check("stream", &p, &["temporality=once"]);
}

#[test]
fn creates() {
    for apart in [false, true] {
        let mut p = Programs::on(RANKS);
        let name = |rank: u32, n: u32| {
            if apart {
                format!("/creates/rank.{rank}/object.{rank}.{n:06}")
            } else {
                format!("/creates/object.{rank}.{n:06}")
            }
        };
        for n in 0..250 {
            for r in 0..RANKS {
                let file = p.open(r, &name(r, n), made());
                p.close(r, file);
            }
        }
        let advice = check("creates", &p, &[]);
        // With the control, a node can cache the names of a directory that one rank uses, but not
        // those of a shared directory. So the control is proposed only for directories of one rank.
        let is_exclusive = |all: &[Proposal]| all.iter().any(|p| p.control == "parallelism");
        assert_eq!(is_exclusive(&advice.proposals), apart, "{advice:#?}");
        assert_eq!(is_exclusive(&advice.fitting), !apart, "{advice:#?}");
    }
}

#[test]
fn update() {
    let mut p = Programs::on(RANKS);
    let name = |rank: u32| format!("/update/state.{rank}");
    for r in 0..RANKS {
        let file = p.open(r, &name(r), made());
        p.write(r, file, 0, MIB);
        p.close(r, file);
        let file = p.open(r, &name(r), made());
        for _ in 0..50 {
            (0..8).for_each(|block| p.write(r, file, block * (MIB / 8), 4096));
        }
        p.close(r, file);
        let file = p.open(r, &name(r), rdonly());
        (0..8).for_each(|block| p.read(r, file, block * (MIB / 8), 4096));
        p.close(r, file);
    }
    // No weaker consistency is proposed: if writes may be seen in another order, a batch may be
    // seen in part after a crash.
    check("update", &p, &["parallelism=exclusive"]);
}
