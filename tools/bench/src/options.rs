//! The command line of the driver.

use crate::workloads::{BATCHES, COSTS, MOUNT, NODE_MEASUREMENTS, SEARCH, WORKLOADS};
use clap::Parser;
use std::path::PathBuf;

/// Makes a pool and runs each workload in turn on /dev/shm and in the pool; then the same with a
/// pool of four nodes on this host, beside bare TCP; and with a mount, beside a trivial file system
/// by FUSE.
#[derive(Parser)]
#[command(name = "forebay-bench", after_help = names_help())]
pub struct Options {
    /// The program forebay [default: beside this one, then PATH]
    #[arg(long, default_value_os_t = default_forebay(), hide_default_value = true)]
    pub forebay: PathBuf,
    /// The pool's media
    #[arg(long, value_name = "SPEC", default_value = "memory:3G")]
    pub media: String,
    /// Smaller amounts (under 3 minutes in all)
    #[arg(long)]
    pub quick: bool,
    /// Numbers of processes with which each workload runs
    #[arg(long, value_delimiter = ',', default_value = "1,2,4", value_parser = count)]
    pub procs: Vec<usize>,
    /// Only these workloads, costs and parts [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = known)]
    pub only: Vec<String>,
    /// Write all figures to FILE as well
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Number of repetitions of each measurement, plain and pool in turn
    #[arg(long, default_value = "3", value_parser = count)]
    pub reps: usize,
}

impl Options {
    /// Whether to measure the workload or cost `name`.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| o == name)
    }

    /// Whether to measure this part on several nodes; `nodes` selects all such parts.
    pub fn wants_part(&self, name: &str) -> bool {
        self.wants(name) || self.wants("nodes")
    }
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err("a number from 1 to 64 is wanted".into()),
    }
}

fn known(name: &str) -> Result<String, String> {
    let workloads = WORKLOADS.iter().map(|w| w.name);
    let costs = COSTS.iter().chain(NODE_MEASUREMENTS).map(|c| c.0);
    let others = ["nodes", MOUNT.0, SEARCH.0, BATCHES.0];
    if workloads.chain(costs).chain(others).any(|n| n == name) {
        Ok(name.to_owned())
    } else {
        Err("no such workload; see --help".into())
    }
}

/// Returns the program beside this one or, if there is none, the one in PATH.
fn default_forebay() -> PathBuf {
    std::env::current_exe()
        .ok()
        .map(|me| me.with_file_name("forebay"))
        .filter(|beside| beside.is_file())
        .unwrap_or_else(|| "forebay".into())
}

fn names_help() -> String {
    let workloads: Vec<_> = WORKLOADS.iter().map(|w| (w.name, w.about)).collect();
    let lists: [(&str, &[(&str, &str)]); 6] = [
        ("Workloads", &workloads),
        ("Costs of uninvolved programs", COSTS),
        (
            "Several nodes on this host (nodes: all of these)",
            NODE_MEASUREMENTS,
        ),
        ("A mount", &[MOUNT]),
        ("Searches", &[SEARCH]),
        ("Batches", &[BATCHES]),
    ];
    let mut text = String::from(
        "Exit code: 0 if everything ran (goals reached or not), 1 if something failed, 2 for a wrong command line. \
         Example: forebay-bench --quick --procs 1,2 --only create,stat\n",
    );
    for (heading, list) in lists {
        text += &format!("\n{heading}:\n");
        for (name, about) in list {
            text += &format!("  {name:<14} {about}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(["forebay-bench"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn options_are_read() {
        let options = read("--quick --procs=1,8 --only list,run --reps 5").unwrap();
        assert!(options.quick && options.json.is_none());
        assert_eq!((options.procs.as_slice(), options.reps), (&[1, 8][..], 5));
        assert!(options.wants("list") && options.wants("run") && !options.wants("create"));
        assert!(!options.wants_part("latency"));
        let options = read("--only nodes").unwrap();
        assert!(options.wants_part("latency") && !options.wants("create"));
        assert_eq!(read("").unwrap().procs, [1, 2, 4]);
        let help = read("--help").err().unwrap();
        assert_eq!(help.exit_code(), 0);
    }

    #[test]
    fn wrong_options_are_refused() {
        for line in [
            "--procs 0",
            "--procs 1,",
            "--only nothing",
            "--reps",
            "--quick=1",
            "more",
        ] {
            assert_eq!(read(line).err().map(|e| e.exit_code()), Some(2), "{line}");
        }
    }
}
