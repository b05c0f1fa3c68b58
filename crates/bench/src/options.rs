//! The command line of the driver.

use crate::batches;
use crate::fuse;
use crate::nodes::PARTS;
use crate::search;
use crate::workloads::{COSTS, WORKLOADS};
use std::path::PathBuf;

/// What the user asked for.
pub struct Options {
    pub forebay: PathBuf,
    pub media: String,
    pub quick: bool,
    pub procs: Vec<usize>,
    /// Names to measure; empty: all.
    pub only: Vec<String>,
    pub json: Option<PathBuf>,
    pub reps: usize,
}

impl Options {
    /// Whether the workload or cost of this name is to be measured.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| o == name)
    }

    /// Whether this part of what several nodes do is to be measured; `nodes` is all parts.
    pub fn wants_part(&self, name: &str) -> bool {
        self.wants(name) || self.wants("nodes")
    }
}

/// Reads the arguments; `None` means that help is asked for.
pub fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options {
        forebay: default_forebay(),
        media: "memory:3G".into(),
        quick: false,
        procs: vec![1, 2, 4],
        only: Vec::new(),
        json: None,
        reps: 3,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, mut inline) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_string())),
            _ => (argument.as_str(), None),
        };
        let mut value = || match inline.take() {
            Some(value) => Ok(value),
            None => rest.next().cloned().ok_or(format!("{name} wants a value")),
        };
        match name {
            "-h" | "--help" => return Ok(None),
            "--quick" => options.quick = true,
            "--forebay" => options.forebay = value()?.into(),
            "--media" => options.media = value()?,
            "--json" => options.json = Some(value()?.into()),
            "--reps" => options.reps = number(name, &value()?)?,
            "--procs" => {
                options.procs = value()?
                    .split(',')
                    .map(|p| number(name, p))
                    .collect::<Result<_, _>>()?;
            }
            "--only" => {
                for wanted in value()?.split(',') {
                    if !names().any(|n| n == wanted) {
                        return Err(format!("nothing is called {wanted:?}"));
                    }
                    options.only.push(wanted.to_string());
                }
            }
            _ => return Err(format!("unknown option {argument:?}")),
        }
        if let Some(value) = inline {
            return Err(format!("{name} takes no value, and {value:?} was given"));
        }
    }
    Ok(Some(options))
}

fn number(name: &str, text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err(format!("{name} wants numbers from 1 to 64, not {text:?}")),
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    let workloads = WORKLOADS.iter().map(|w| w.name);
    let parts = PARTS
        .iter()
        .map(|p| p.0)
        .chain(["nodes", fuse::NAME, search::NAME, batches::NAME]);
    workloads.chain(COSTS.iter().map(|c| c.0)).chain(parts)
}

/// The program that lies beside this one, or else the one in PATH.
fn default_forebay() -> PathBuf {
    std::env::current_exe()
        .ok()
        .map(|me| me.with_file_name("forebay"))
        .filter(|beside| beside.is_file())
        .unwrap_or_else(|| "forebay".into())
}

pub fn help() -> String {
    let mut text = String::from(
        "Usage: forebay-bench [OPTION ...]

Makes a pool and runs each workload in turn on /dev/shm and in the pool; then the same with
a pool of four nodes on this host, beside bare TCP; and with a mount, beside a trivial
file system by FUSE.

  --quick          smaller amounts (under 3 minutes in all)
  --procs 1,2,4    with how many processes each workload runs
  --only NAME,...  only these workloads, costs and parts
  --reps 3         how often each is repeated, plain and pool in turn
  --json FILE      write all figures there as well
  --forebay PATH   the program (default: beside this one, then PATH)
  --media SPEC     what the pool is made of (default: memory:3G)

Exit code: 0 if everything ran (goals reached or not), 1 if something failed, 2 for a
wrong command line. Example: forebay-bench --quick --procs 1,2 --only create,stat

Workloads:
",
    );
    for w in WORKLOADS {
        text += &format!("  {:<14} {}\n", w.name, w.about);
    }
    text += "Costs of uninvolved programs:\n";
    for (name, about) in COSTS {
        text += &format!("  {name:<14} {about}\n");
    }
    text += "Several nodes on this host (nodes: all of these):\n";
    for (name, about) in PARTS {
        text += &format!("  {name:<14} {about}\n");
    }
    text += "A mount:\n";
    text += &format!("  {:<14} {}\n", fuse::NAME, fuse::ABOUT);
    text += "Searches:\n";
    text += &format!("  {:<14} {}\n", search::NAME, search::ABOUT);
    text += "Batches:\n";
    text += &format!("  {:<14} {}\n", batches::NAME, batches::ABOUT);
    text
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn read(line: &str) -> Result<Option<super::Options>, String> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&words)
    }

    #[test]
    fn options_are_read() {
        let options = read("--quick --procs=1,8 --only list,run --reps 5")
            .unwrap()
            .unwrap();
        assert!(options.quick && options.json.is_none());
        assert_eq!((options.procs.as_slice(), options.reps), (&[1, 8][..], 5));
        assert!(options.wants("list") && options.wants("run") && !options.wants("create"));
        assert!(!options.wants_part("latency"));
        let options = read("--only nodes").unwrap().unwrap();
        assert!(options.wants_part("latency") && !options.wants("create"));
        assert!(read("--help").unwrap().is_none());
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
            assert!(read(line).is_err(), "{line}");
        }
    }
}
