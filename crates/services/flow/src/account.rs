//! Users of this host, and acting as one of them.
//!
//! A service of root touches a user's files from a thread that has that user's identity for the
//! file system ([`Account::act`]), and starts programs as that user by `setpriv`
//! ([`Account::command`]). A service of another user serves that user only.

use crate::{Result, names, programs};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Variables of the service's environment that programs of other users get.
const PASSED_VARIABLES: [&str; 8] = [
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "SLURM_CONF",
    "FOREBAY_CAMPAIGNS",
    "SSL_CERT_FILE",
    "LD_LIBRARY_PATH",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
    groups: Vec<u32>,
}

/// While it lives, this thread touches files as the user.
pub struct Acting {
    groups: Option<Vec<Gid>>,
    // Identity belongs to a thread.
    _thread: std::marker::PhantomData<*const ()>,
}

pub fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// The user that this process belongs to.
///
/// # Errors
/// The user has no name in the system's databases.
pub fn own() -> Result<Account> {
    let uid = rustix::process::getuid().as_raw();
    lookup(&uid.to_string())
}

/// A user, by name or number, as the system's databases have it.
///
/// # Errors
/// There is no such user.
pub fn lookup(name: &str) -> Result<Account> {
    names::check_user(name)?;
    let line = output("getent", &["passwd", "--", name])
        .or_else(|_| output("getent", &["passwd", name]))
        .map_err(|_| format!("there is no user '{name}' on this host"))?;
    let fields: Vec<&str> = line.trim_end().split(':').collect();
    let [name, _, uid, gid, _, home, ..] = fields[..] else {
        return Err(format!("getent passwd {name}: no entry of a user"));
    };
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| format!("'{text}' is no id"))
    };
    let groups = output("id", &["-G", name])?;
    let groups: Result<Vec<u32>> = groups.split_whitespace().map(number).collect();
    Ok(Account {
        name: name.to_owned(),
        uid: number(uid)?,
        gid: number(gid)?,
        home: home.into(),
        groups: groups?,
    })
}

/// Names and home directories of the users that the system's databases list.
///
/// # Errors
/// They can't be listed.
pub fn homes() -> Result<Vec<(String, PathBuf)>> {
    let all = output("getent", &["passwd"])?;
    let user = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        Some(((*fields.first()?).to_owned(), PathBuf::from(fields.get(5)?)))
    };
    Ok(all.lines().filter_map(user).collect())
}

fn output(program: &str, words: &[&str]) -> Result<String> {
    programs::output(Command::new(program).args(words))
}

impl Account {
    fn is_other(&self) -> bool {
        is_root() && self.uid != 0
    }

    /// Lets this thread touch files as the user until the result is dropped.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn act(&self) -> Result<Acting> {
        let mut acting = Acting {
            groups: None,
            _thread: std::marker::PhantomData,
        };
        if !self.is_other() {
            return Ok(acting);
        }
        let failed = |e| format!("can't act as '{}': {e}", self.name);
        let before = rustix::process::getgroups().map_err(failed)?;
        acting.groups = Some(before);
        let groups: Vec<Gid> = self.groups.iter().map(|&g| Gid::from_raw(g)).collect();
        set_thread_groups(&groups).map_err(failed)?;
        set_thread_res_gid(None::<Gid>, Gid::from_raw(self.gid), None::<Gid>).map_err(failed)?;
        set_thread_res_uid(None::<Uid>, Uid::from_raw(self.uid), None::<Uid>).map_err(failed)?;
        Ok(acting)
    }

    /// A command that runs as the user, in the user's environment.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = if self.is_other() {
            let mut command = Command::new("setpriv");
            command.args([
                format!("--reuid={}", self.uid),
                format!("--regid={}", self.gid),
                "--init-groups".into(),
                "--inh-caps=-all".into(),
                "--".into(),
            ]);
            command.arg(program);
            command.env_clear();
            for name in PASSED_VARIABLES {
                if let Some(value) = std::env::var_os(name) {
                    command.env(name, value);
                }
            }
            command
        } else {
            Command::new(program)
        };
        command
            .env("HOME", &self.home)
            .env("USER", &self.name)
            .env("LOGNAME", &self.name)
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let Some(groups) = self.groups.take() else {
            return;
        };
        let root = (Uid::ROOT, Gid::ROOT);
        let back = set_thread_res_uid(None::<Uid>, root.0, None::<Uid>)
            .and_then(|()| set_thread_res_gid(None::<Gid>, root.1, None::<Gid>))
            .and_then(|()| set_thread_groups(&groups));
        if back.is_err() {
            // A thread that went on would do one user's work with another's rights.
            std::process::abort();
        }
    }
}
