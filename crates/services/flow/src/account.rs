//! Users of this host, and acting as one of them.
//!
//! If the service runs as root, a thread that accesses a user's files takes on that user's file
//! system identity ([`Account::act`]), and programs are started as the user by `setpriv`
//! ([`Account::command`]). If the service runs as another user, it serves only that user.

use crate::{Result, names, programs};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Environment variables of the service that other users' programs get.
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

/// While this value exists, its thread accesses files as the user.
pub struct Acting {
    groups: Option<Vec<Gid>>,
    // Makes the type !Send, since the identity is one thread's.
    _thread: std::marker::PhantomData<*const ()>,
}

pub fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

/// Returns the user of this process.
///
/// # Errors
/// The system's databases have no name for the user.
pub fn own() -> Result<Account> {
    let uid = rustix::process::getuid().as_raw();
    lookup(&uid.to_string())
}

/// Looks up a user, by name or number, in the system's databases.
///
/// # Errors
/// The user doesn't exist.
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

/// Returns the names and home directories of the users in the system's databases.
///
/// # Errors
/// The databases can't be listed.
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

    /// Makes this thread access files as the user until the result is dropped.
    ///
    /// # Errors
    /// The kernel refuses to change the identity.
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

    /// Returns a command that runs as the user, in the user's environment.
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
            // If the thread continued, it would do one user's work with another user's rights.
            std::process::abort();
        }
    }
}
