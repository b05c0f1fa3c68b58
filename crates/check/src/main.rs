//! `forebay-check`: does a pool behave like one POSIX file system, whoever looks from wherever?
//!
//! A black box: it knows nothing of Forebay but paths. Several processes, on as many nodes as there are, do
//! random operations on few files and names, all at once, in short phases with a barrier between. Each
//! operation is noted with its result and the times at which it began and ended. After each phase the
//! checker tries whether some order of them, on a model of a POSIX file system, gives these results.
//!
//! - [`operation`]: what is noted; [`memory`]: how workers and driver share it; [`calls`]: libc;
//! - [`worker`]: what a process does, [`theme`]: chosen how; [`weak`]: how it can be done worse, so that something is found;
//! - [`later`]: files with weaker consistency, and [`visible`]: what may be seen of them;
//! - [`model`] and [`steps`]: the file system, [`search`]: the orders; [`driver`]: processes and phases; [`options`].

mod calls;
mod driver;
mod later;
mod memory;
mod model;
mod operation;
mod options;
mod random;
mod search;
mod steps;
#[cfg(test)]
mod tests;
mod theme;
mod visible;
mod weak;
mod worker;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == "worker") {
        return match work(&arguments[1..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => stop(&e),
        };
    }
    let options = options::Options::parse();
    let ended = match options.consistency {
        Some(consistency) => later::run(&options, consistency),
        None => driver::run(&options),
    };
    match ended {
        Ok(driver::End::Fine) => ExitCode::SUCCESS,
        Ok(driver::End::Impossible) => ExitCode::from(1),
        Ok(driver::End::Hang) => ExitCode::from(3),
        Err(e) => stop(&e),
    }
}

fn stop(message: &str) -> ExitCode {
    eprintln!("forebay-check: {message}");
    ExitCode::from(2)
}

fn work(arguments: &[String]) -> Result<(), String> {
    if arguments.first().is_some_and(|a| a == later::WORD) {
        return later::work(&arguments[1..]);
    }
    let [file, index, top, cell, most, locks, weak] = arguments else {
        return Err("a worker is started by the driver only".into());
    };
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .map_err(|e| format!("{file}: {e}"))?;
    let shared = memory::Shared::map(&file).map_err(|e| format!("mmap: {e}"))?;
    let number = |text: &str| options::number("worker", text, 0, u64::MAX);
    worker::Worker::new(
        shared,
        number(index)? as usize,
        top,
        number(cell)? as usize,
        number(most)?,
        options::Locks::of(number(locks)?),
        weak::Weak::new(options::weak(weak)?),
    )
    .work()
}
