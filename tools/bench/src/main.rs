//! `forebay-bench`: measures what a pool costs and gains, compared with the same work on
//! `/dev/shm`.
//!
//! The benchmark uses Forebay only through its command line. The same program runs as a worker
//! (`forebay-bench worker …`), in turn without Forebay and under `forebay exec`. So a ratio
//! compares two runs of the same minute.
//!
//! - [`options`]: the command line; [`workloads`]: the table of workloads and measurements;
//! - [`driver`]: the order of runs; [`pool`], [`children`]: what the driver starts;
//! - [`worker`], [`tasks`], [`files`], [`blocks`], [`maps`], [`costly`]: the code of workers;
//!   [`sys`]: libc;
//! - [`nodes`]: a pool of several nodes; [`remote`]: its workers; [`tcp`]: the reference;
//! - [`fuse`]: a mount, and a pass-through file system as the reference;
//! - [`search`], [`batches`]: searches and batches by the verbs, through [`iov`];
//! - [`costs`]: the costs for uninvolved programs; [`report`]: the table and the JSON.

mod batches;
mod blocks;
mod children;
mod costly;
mod costs;
mod driver;
mod files;
mod fuse;
mod iov;
mod maps;
mod nodes;
mod options;
mod pool;
mod remote;
mod report;
mod search;
mod sys;
mod tasks;
mod tcp;
mod worker;
mod workloads;

use clap::Parser;
use options::Options;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = match std::env::args_os()
        .skip(1)
        .map(|a| a.into_string())
        .collect()
    {
        Ok(arguments) => arguments,
        Err(bad) => return stop(&format!("{} is not valid UTF-8", bad.display()), 2),
    };
    if arguments.first().is_some_and(|a| a == "worker") {
        return match tasks::main(&arguments[1..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => stop(&e, 1),
        };
    }
    if let [peer, address] = arguments.as_slice()
        && peer == "peer"
    {
        return match tcp::peer(address) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => stop(&e, 1),
        };
    }
    if let [passthrough, source, dir] = arguments.as_slice()
        && passthrough == "passthrough"
    {
        return match fuse::passthrough(source, dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => stop(&e, 1),
        };
    }
    let options = Options::parse();
    sys::note_signals();
    match driver::run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => stop(&e, 1),
    }
}

fn stop(message: &str, code: u8) -> ExitCode {
    eprintln!("forebay-bench: {message}");
    ExitCode::from(code)
}
