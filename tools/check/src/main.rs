//! `forebay-check`: checks whether a pool behaves like one POSIX file system, from whichever
//! process on whichever node it is used. See the library.

use clap::Parser;
use forebay_check::*;
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
    let ended = match (options.consistency, &options.origin) {
        (Some(consistency), _) => later::run(&options, consistency),
        (None, Some(origin)) => outside::run(&options, origin),
        (None, None) => run(&options),
    };
    match ended {
        Ok(End::Fine) => ExitCode::SUCCESS,
        Ok(End::Impossible) => ExitCode::from(1),
        Ok(End::Hang) => ExitCode::from(3),
        Err(e) => stop(&e),
    }
}

fn stop(message: &str) -> ExitCode {
    eprintln!("forebay-check: {message}");
    ExitCode::from(2)
}

fn work(arguments: &[String]) -> Result<(), String> {
    if arguments.first().is_some_and(|a| a == later::WORD) {
        return later::work(&arguments[1..], &mut calls::Libc);
    }
    if arguments.first().is_some_and(|a| a == outside::WORD) {
        return outside::work(arguments);
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
        weak::Weak::new(options::weak(weak)?, Box::new(calls::Libc)),
    )
    .work()
}
