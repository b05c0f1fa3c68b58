//! The arguments of commands for files in a pool: ls, cat, df, rm, mkdir, mv, cp, du, find.
//!
//! Their letters are those of coreutils. So `-h` is a form of sizes here, and help is `--help`.

use clap::{ArgAction, Args};
use std::ffi::OsString;

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Ls {
    /// Modes, owners, sizes and times
    #[arg(short, help_heading = "What is shown")]
    pub long: bool,
    /// Names that begin with a dot, too
    #[arg(short, help_heading = "What is shown")]
    pub all: bool,
    /// Directories themselves instead of what is in them
    #[arg(short = 'd', help_heading = "What is shown")]
    pub directory: bool,
    /// Directories below, too
    #[arg(
        short = 'R',
        conflicts_with = "directory",
        help_heading = "What is shown"
    )]
    pub recursive: bool,
    /// Sort by time of modification, newest first
    #[arg(short = 't', help_heading = "Order")]
    pub by_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', conflicts_with = "by_time", help_heading = "Order")]
    pub by_size: bool,
    /// Reverse the order
    #[arg(short, help_heading = "Order")]
    pub reverse: bool,
    /// With -l, sizes as 1.5K, 64M, 2.0G
    #[arg(short = 'h', long = "human-readable", help_heading = "Form")]
    pub human: bool,
    /// One name on each line, as always
    #[arg(short = '1', help_heading = "Form")]
    pub one: bool,
    /// Print as JSON
    #[arg(long, help_heading = "Form")]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// What to list; default: /
    pub paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Cat {
    /// Files to print, one after the other
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Df {
    /// Sizes as 1.5K, 64M, 2.0G
    #[arg(short = 'h', long = "human-readable", help_heading = "Form")]
    pub human: bool,
    /// Print as JSON
    #[arg(long, help_heading = "Form")]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, Args)]
pub struct Rm {
    /// Directories with all that is in them, too; symbolic links aren't followed
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// What isn't there is no error
    #[arg(short, long)]
    pub force: bool,
    /// What to remove
    #[arg(required_unless_present = "force")]
    pub paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Mkdir {
    /// Missing directories above them, too; one that exists is no error
    #[arg(short, long)]
    pub parents: bool,
    /// The directories
    #[arg(required = true)]
    pub paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Mv {
    /// What exists already at the destination is left as it is
    #[arg(short, long)]
    pub no_clobber: bool,
    /// What to move
    #[arg(required = true)]
    pub src: Vec<OsString>,
    /// The new name, or a directory to move it into
    #[arg(required = true)]
    pub dst: OsString,
}

#[derive(Debug, Args)]
pub struct Cp {
    /// Directories with all that is in them, too; symbolic links are copied as links
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// Keep mode, owner, times and user.* attributes
    #[arg(short, long)]
    pub preserve: bool,
    /// What to copy
    #[arg(required = true)]
    pub src: Vec<OsString>,
    /// The name of the copy, or a directory to copy it into
    #[arg(required = true)]
    pub dst: OsString,
}

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Du {
    /// Of each path the sum only
    #[arg(short, help_heading = "What is shown")]
    pub summarize: bool,
    /// Files, too, not directories only
    #[arg(short, conflicts_with = "summarize", help_heading = "What is shown")]
    pub all: bool,
    /// Directories down to this depth only; 0: the paths themselves
    #[arg(
        short = 'd',
        long = "max-depth",
        value_name = "N",
        conflicts_with = "summarize",
        help_heading = "What is shown"
    )]
    pub depth: Option<usize>,
    /// Sizes of files in bytes, instead of the room that they take in KiB
    #[arg(short, help_heading = "Form")]
    pub bytes: bool,
    /// Sizes as 1.5K, 64M, 2.0G
    #[arg(short = 'h', long = "human-readable", help_heading = "Form")]
    pub human: bool,
    /// Print as JSON
    #[arg(long, help_heading = "Form")]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// What to measure; default: /
    pub paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Find {
    /// Only names that fit: * ? [a-z] {a,b}; also written -name
    #[arg(long, value_name = "GLOB", help_heading = "What is found")]
    pub name: Option<String>,
    /// Only files (f), directories (d), symbolic links (l), FIFOs (p), sockets (s); also -type
    #[arg(
        long = "type",
        value_name = "TYPES",
        value_delimiter = ',',
        help_heading = "What is found"
    )]
    pub types: Vec<Kind>,
    /// At most so many names below the paths; also -maxdepth
    #[arg(long = "maxdepth", value_name = "N", help_heading = "What is found")]
    pub depth: Option<usize>,
    /// End each path with a zero byte instead of a new line; also -print0
    #[arg(long, help_heading = "Form")]
    pub print0: bool,
    /// Print as JSON
    #[arg(long, conflicts_with = "print0", help_heading = "Form")]
    pub json: bool,
    /// Where to search, below; default: /
    pub paths: Vec<OsString>,
}

/// A type of file, by its letter in find(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    #[value(name = "f")]
    File,
    #[value(name = "d")]
    Directory,
    #[value(name = "l")]
    Link,
    #[value(name = "p")]
    Fifo,
    #[value(name = "s")]
    Socket,
    #[value(name = "c")]
    Character,
    #[value(name = "b")]
    Block,
}

impl Kind {
    /// Its bits in a mode (S_IFMT).
    pub fn bits(self) -> u32 {
        match self {
            Kind::File => libc::S_IFREG,
            Kind::Directory => libc::S_IFDIR,
            Kind::Link => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::Socket => libc::S_IFSOCK,
            Kind::Character => libc::S_IFCHR,
            Kind::Block => libc::S_IFBLK,
        }
    }
}

/// The words of a command line, where `find` has its options with one hyphen, as find(1): they get
/// the two that clap wants.
pub fn with_hyphens(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const OPTIONS: [&str; 4] = ["-name", "-type", "-maxdepth", "-print0"];
    let mut words: Vec<OsString> = words.into_iter().collect();
    let mut at = 1;
    // Options of all commands may precede the command.
    while let Some(word) = words
        .get(at)
        .filter(|w| w.as_encoded_bytes().starts_with(b"-"))
    {
        at += if word == "--pool" || word == "--color" {
            2
        } else {
            1
        };
    }
    if words.get(at).is_none_or(|command| command != "find") {
        return words;
    }
    let mut is_value = false;
    for word in words.iter_mut().skip(at + 1) {
        if word == "--" {
            break;
        }
        if !is_value && OPTIONS.iter().any(|o| word == o) {
            *word = OsString::from(format!("-{}", word.to_string_lossy()));
        }
        is_value = !is_value && (word == "--name" || word == "--pool");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_takes_one_hyphen() {
        let of = |text: &str| {
            let words = with_hyphens(text.split(' ').map(OsString::from));
            let words: Vec<&str> = words.iter().map(|w| w.to_str().unwrap()).collect();
            words.join(" ")
        };
        for (given, wanted) in [
            (
                "forebay find / -name x -type f",
                "forebay find / --name x --type f",
            ),
            (
                "forebay --pool p find -name -type",
                "forebay --pool p find --name -type",
            ),
            ("forebay find -- -name", "forebay find -- -name"),
            ("forebay ls -name", "forebay ls -name"),
            ("forebay exec find -name x", "forebay exec find -name x"),
            ("forebay", "forebay"),
        ] {
            assert_eq!(of(given), wanted);
        }
    }
}
