//! The arguments of commands for files in a pool: ls, df, find.
//!
//! The options' letters are those of coreutils, so `-h` chooses a form of sizes, and help is only
//! `--help`.

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
    /// Directories themselves instead of their entries
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
    /// Print one name on each line; this is always so
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
#[command(disable_help_flag = true)]
pub struct Df {
    /// Print sizes with units; this is always so
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
pub struct Find {
    /// Only names that match: * ? [a-z] {a,b}; also written -name
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
    /// Maximum depth below the paths; also -maxdepth
    #[arg(long = "maxdepth", value_name = "N", help_heading = "What is found")]
    pub depth: Option<usize>,
    /// End each path with a zero byte instead of a new line; also -print0
    #[arg(long, help_heading = "Form")]
    pub print0: bool,
    /// Print as JSON
    #[arg(long, conflicts_with = "print0", help_heading = "Form")]
    pub json: bool,
    /// Where to search, directories below included; default: /
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
    /// Returns the type's bits in a mode (S_IFMT).
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

/// Returns the words of a command line with a second hyphen before those options of `find` that
/// have one hyphen, as in find(1): clap requires two.
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
