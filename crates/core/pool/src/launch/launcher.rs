//! Commands that launch a node's daemon: fork, a remote shell, Slurm, or a rank of an MPI launcher.

use super::{How, Plan};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// A way to launch a daemon on a host. The command's standard input and output carry the daemon's
/// messages; the command's standard error tells users why a launch failed.
pub trait Launcher: Send + Sync {
    /// The command that launches the daemon of node `node`.
    fn command(&self, node: u32) -> Command;
    /// Whether the command ends as soon as the daemon has started. Otherwise the command runs as
    /// long as the daemon.
    fn leaves(&self) -> bool;
}

/// Environment variable for `forebay reach`: the key of the start, and the addresses where the rank
/// waits.
pub const REACH: &str = "FOREBAY_REACH";

/// The launcher of a plan.
pub fn launcher(plan: &Plan) -> Box<dyn Launcher> {
    let words = Words {
        executable: plan.executable.clone().into_os_string(),
        pool: plan.name.clone(),
    };
    match &plan.how {
        How::Local => Box::new(Local { words }),
        How::Ranks { reach, key, .. } => Box::new(Ranks {
            own: Local { words },
            reach: reach.clone(),
            key: key.0.clone(),
        }),
        how => Box::new(Remote {
            words,
            how: how.clone(),
            hosts: plan.hosts.clone(),
        }),
    }
}

/// The command line of a daemon. The command line names pool and node only for people who read a
/// list of processes; the daemon gets its parameters by messages.
struct Words {
    executable: OsString,
    pool: String,
}

impl Words {
    fn list(&self, node: u32) -> Vec<OsString> {
        let node = node.to_string();
        let rest = [
            "keeper",
            "--launched",
            "--pool",
            &self.pool,
            "--node",
            &node,
        ];
        let mut words = vec![self.executable.clone()];
        words.extend(rest.iter().map(OsString::from));
        words
    }
}

/// Launches daemons on this host.
struct Local {
    words: Words,
}

impl Launcher for Local {
    fn command(&self, node: u32) -> Command {
        let words = self.words.list(node);
        // Runs the same executable, even if its path now leads to another file.
        let itself = std::env::current_exe().is_ok_and(|e| e == Path::new(&words[0]));
        let program = if itself {
            "/proc/self/exe".into()
        } else {
            words[0].clone()
        };
        let mut command = Command::new(program);
        std::os::unix::process::CommandExt::arg0(&mut command, &words[0]);
        command.args(&words[1..]).current_dir("/");
        for variable in ["LD_PRELOAD", "FOREBAY_NODE", "FOREBAY_DIR"] {
            command.env_remove(variable);
        }
        command
    }

    fn leaves(&self) -> bool {
        true
    }
}

/// Launches daemons by MPI ranks that wait for a call; the rank of node 0 is this process.
struct Ranks {
    own: Local,
    reach: Vec<String>,
    key: String,
}

impl Launcher for Ranks {
    fn command(&self, node: u32) -> Command {
        let mut command = self.own.command(node);
        if node > 0 {
            let mut caller = Command::new(command.get_program());
            let reach = self.reach.get(node as usize).map_or("", String::as_str);
            caller
                .args(["reach", "--node", &node.to_string()])
                .env(REACH, format!("{} {reach}", self.key))
                .env_remove("LD_PRELOAD");
            command = caller;
        }
        command
    }

    fn leaves(&self) -> bool {
        true
    }
}

/// Launches daemons by a remote shell, or by Slurm.
struct Remote {
    words: Words,
    how: How,
    hosts: Vec<String>,
}

impl Launcher for Remote {
    fn command(&self, node: u32) -> Command {
        let host = self.hosts.get(node as usize).map_or("", String::as_str);
        remote(&self.how, host, &self.words.list(node))
    }

    fn leaves(&self) -> bool {
        !matches!(self.how, How::Srun { .. })
    }
}

/// A command that runs `words` on a host.
pub fn remote(how: &How, host: &str, words: &[OsString]) -> Command {
    let mut command = match how {
        How::Local => {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command
        }
        How::Rsh(program) | How::Ranks { rsh: program, .. } => {
            let mut command = Command::new(program);
            let name = Path::new(program).file_name();
            if name.is_some_and(|n| n == "ssh") {
                // No prompts, a bounded wait, no pseudo-terminal, no forwarding.
                let options = [
                    "-o",
                    "BatchMode=yes",
                    "-o",
                    "ConnectTimeout=10",
                    "-T",
                    "-x",
                    "-a",
                ];
                command.args(options);
            }
            let quoted = words.iter().map(|w| quoted(w)).collect::<Vec<_>>();
            command.arg(host).arg(quoted.join(OsStr::new(" ")));
            command
        }
        How::Srun { components } => {
            // The daemon's step runs beside the job's own steps, without a share of the job's
            // resources.
            let mut command = Command::new("srun");
            let options = [
                "--overlap",
                "--nodes=1",
                "--ntasks=1",
                "--mem=0",
                "--quiet",
                "-w",
                host,
            ];
            command.args(options);
            let hosts = |component: &Vec<String>| component.iter().any(|h| h == host);
            if let Some(component) = components.iter().position(hosts) {
                command.arg(format!("--het-group={component}"));
            }
            command.args(words);
            command
        }
    };
    command.env_remove("LD_PRELOAD");
    command
}

/// Quotes a word for any host's shell.
pub fn quoted(word: &OsStr) -> OsString {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(b);
    if !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.to_owned();
    }
    let mut out = vec![b'\''];
    for &b in word.as_bytes() {
        match b {
            b'\'' => out.extend_from_slice(b"'\\''"),
            b => out.push(b),
        }
    }
    out.push(b'\'');
    std::os::unix::ffi::OsStringExt::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        for word in ["", "plain", "/a b", "it's", "$HOME `x` \"y\" \\ \n*", "é"] {
            let text = quoted(word.as_ref());
            let mut line = OsString::from("printf %s ");
            line.push(&text);
            let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes(), "{text:?}");
        }
    }
}
