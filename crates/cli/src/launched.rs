//! `forebay keeper --launched`: the daemon of a node, started together with its pool.

use crate::fail::Fail;
use crate::guard::{Ward, divide, turn};
use crate::{addresses, background, capacity, keeper, lifetime};
use forebay_client::origin::{OriginConfig, OriginMode, SERVICE_NODE};
use forebay_pool::Error;
use forebay_pool::launch::messages::{encode_up, greet, hear_greeting};
use forebay_pool::launch::{Begin, Host, Own, drive, launcher};
use forebay_pool::start::{Missing, Up};
use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub fn main() -> Result<u8, Fail> {
    // Makes this process lead a session of its own, so that no terminal ends it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    background::close_inherited();
    match divide()? {
        Ok(ward) => daemon(ward),
        Err(code) => Ok(code),
    }
}

fn daemon(ward: Ward) -> Result<u8, Fail> {
    let failed = |e: std::io::Error| Fail::failed(format!("can't start: {e}"));
    let _ = rustix::process::setsid();
    let term = keeper::hold_term();
    // Moves the pipes to other descriptors: output printed by mistake must not get into them.
    let (mut from, mut to) = (take(0).map_err(failed)?, take(1).map_err(failed)?);
    let begin = match hear_greeting(&mut from).and_then(|()| Begin::read(&mut from)) {
        Ok(begin) => begin,
        Err(e) => {
            let _ = greet(&mut to);
            let why = format!("its Forebay doesn't understand the one that starts the pool: {e}");
            return Err(Fail::failed(why));
        }
    };
    let plan = begin.plan.clone();
    if plan.forebay != env!("CARGO_PKG_VERSION") {
        let why = format!(
            "has Forebay {}, but the pool is started by {}; install the same on all hosts",
            env!("CARGO_PKG_VERSION"),
            plan.forebay
        );
        let (node, below) = (begin.me, plan.tree().below(begin.me) - 1);
        let failed = Up::Failed(vec![Missing { node, below, why }]);
        let _ = greet(&mut to).and_then(|()| to.write_all(&encode_up(&failed)));
        return Ok(1);
    }
    if let Some(home) = &plan.home {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("FOREBAY_HOME", home) };
    }
    keeper::prepare_process();
    keeper::spare_memory(&plan.limits);
    let pool = Arc::new(OnceLock::new());
    keeper::save_on_term(term, pool.clone(), keeper::on_term(plan.of_job));
    let ward = Arc::new(Mutex::new(ward));
    let (heir, settled) = (ward.clone(), ward.clone());
    let host = Host {
        media: media(&begin).map_err(Error::Host),
        listen: listen(&begin).map_err(Error::Host),
        heir: Box::new(move |config| {
            heir.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .makes(config);
        }),
        settled: Box::new(move || {
            let mut ward = settled.lock().unwrap_or_else(PoisonError::into_inner);
            ward.is_settled();
        }),
    };
    let launcher = launcher(&plan);
    let own = Own::new(begin.clone(), host);
    let own = drive(&begin, &*launcher, from, to, own);
    let Some(own) = own else {
        let mut ward = ward.lock().unwrap_or_else(PoisonError::into_inner);
        ward.is_settled();
        return Ok(1);
    };
    let log = File::options()
        .create(true)
        .append(true)
        .open(own.dir().join("keeper.log"));
    if let Ok(log) = log {
        turn(1, &log);
        turn(2, &log);
    }
    if launcher.leaves() {
        drop(ward);
    } else {
        // Keeps the pipe to the guard open: the guard, and with it the launch, must last as long as
        // this process.
        std::mem::forget(ward);
    }
    match own.into_running() {
        Some(running) => {
            let _ = pool.set(running.pool().clone());
            if let Err(e) = forebay_origin::start(running.pool()) {
                crate::output::print_notice(&e);
            }
            lifetime::watch(running.pool());
            crate::metrics::serve(running.pool());
            running.run()?;
            Ok(0)
        }
        None => Ok(1),
    }
}

/// Takes over one of the standard descriptors, and makes its number refer to /dev/null.
fn take(fd: i32) -> std::io::Result<File> {
    // SAFETY: the descriptor is open, and only borrowed to be duplicated.
    let own = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    turn(fd, &null);
    Ok(File::from(own))
}

fn media(begin: &Begin) -> Result<Vec<forebay_media::MediumSpec>, String> {
    // The node with the origin must be able to reach it; so must all nodes, if programs use the
    // origin's own files. The access is checked here, before anything is created.
    let origin = begin.plan.origin.as_ref();
    let needs = |o: &&OriginConfig| begin.me == SERVICE_NODE || o.may_be(OriginMode::Off);
    let unseen = |o: &OriginConfig| {
        if o.is_bucket() {
            forebay_origin::check(o).err().map(|e| e.to_string())
        } else {
            o.unseen()
        }
    };
    if let Some(origin) = origin.filter(needs)
        && let Some(why) = unseen(origin)
    {
        let off = match begin.me {
            SERVICE_NODE => "",
            _ => "; paths with the mode off need it on every node",
        };
        return Err(format!(
            "the origin {} can't be opened: {why}{off}",
            origin.path
        ));
    }
    if !begin.plan.media.is_empty() {
        return Ok(begin.plan.media.clone());
    }
    let chosen = capacity::default_media_of(begin.plan.neighbours(begin.me));
    chosen.map(|c| c.0).map_err(|e| e.message)
}

fn listen(begin: &Begin) -> Result<Vec<std::net::IpAddr>, String> {
    let picked = begin.plan.listen.pick(&addresses::own());
    if picked.is_empty() {
        return Err(
            "it has no address to listen on; see its interfaces with: ip address; choose with --listen".into(),
        );
    }
    Ok(picked)
}
