//! The values of each control, and how they are written.
//!
//! A value is written as one word, some with a parameter in parentheses: `commit`,
//! `exclusive(node)`, `eventual(500ms)`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Maximum staleness that `eventual(...)` allows: an hour. Milliseconds.
pub const MAX_STALENESS_MS: u32 = 3_600_000;

/// Declares an enumeration whose values are written as single words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $name { $($(#[$value_doc])* $value,)* }

        impl $name {
            /// All values, the default first.
            pub const ALL: &[$name] = &[$($name::$value),*];

            /// The value as it is written.
            pub fn word(self) -> &'static str {
                match self { $($name::$value => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                $name::ALL.iter().copied().find(|v| v.word() == s)
                    .ok_or_else(|| unknown(s, &[$($word),*]))
            }
        }

        by_text!($name);
    };
}

/// Implements serialization of a type by its text form.
macro_rules! by_text {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(s: String) -> Result<Self, String> {
                s.parse()
            }
        }
    };
}

fn unknown(what: &str, known: &[&str]) -> String {
    format!("\"{what}\" isn't one of {}", known.join(", "))
}

/// When other processes see a finished write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Consistency {
    /// As POSIX: the next read in any process sees the write.
    #[default]
    Sequential,
    /// After the writer's flush, fsync or close.
    Commit,
    /// Close-to-open: a process sees the write if it opens the file after the writer's close.
    Session,
    /// After this many milliseconds at the latest (1 to [`MAX_STALENESS_MS`]).
    Eventual(u32),
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Consistency::Sequential => f.write_str("sequential"),
            Consistency::Commit => f.write_str("commit"),
            Consistency::Session => f.write_str("session"),
            Consistency::Eventual(ms) if ms % 1000 == 0 => write!(f, "eventual({}s)", ms / 1000),
            Consistency::Eventual(ms) => write!(f, "eventual({ms}ms)"),
        }
    }
}

impl FromStr for Consistency {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bound = |s: &str| {
            let (number, unit) = match s.strip_suffix("ms") {
                Some(number) => (number, 1),
                None => (s.strip_suffix('s')?, 1000),
            };
            let ms = number.parse::<u32>().ok()?.checked_mul(unit)?;
            (1..=MAX_STALENESS_MS).contains(&ms).then_some(ms)
        };
        match s {
            "sequential" => Ok(Consistency::Sequential),
            "commit" => Ok(Consistency::Commit),
            "session" => Ok(Consistency::Session),
            "eventual" => Err(
                "\"eventual\" needs to say how old at most what is read may be: \"eventual(2s)\""
                    .into(),
            ),
            _ => match s
                .strip_prefix("eventual(")
                .and_then(|s| s.strip_suffix(')'))
            {
                Some(inside) => bound(inside).map(Consistency::Eventual).ok_or_else(|| {
                    format!(
                        "\"{inside}\" isn't a time from 1ms to {}s, such as 500ms or 2s",
                        MAX_STALENESS_MS / 1000
                    )
                }),
                None => Err(unknown(
                    s,
                    &["sequential", "commit", "session", "eventual(TIME)"],
                )),
            },
        }
    }
}

by_text!(Consistency);

words! {
    /// Which processes may use an object at the same time.
    Parallelism {
        /// Any process.
        #[default]
        Shared = "shared",
        /// At any time, the file is open in only one process, and those that inherited its
        /// descriptors.
        Process = "exclusive",
        /// The processes of one node at a time have the file open.
        Node = "exclusive(node)",
    }
}

words! {
    /// How an object changes after its creation.
    Mutability {
        /// Any byte may change at any time.
        #[default]
        Overwrite = "overwrite",
        /// Bytes are only added at the end of the file.
        Append = "append",
        /// The file can't change after its first close (it is then laminated).
        Immutable = "immutable",
    }
}

words! {
    /// How often, and in which rhythm, data is used.
    Temporality {
        /// Used repeatedly.
        #[default]
        Multiple = "multiple",
        /// Written once, read once.
        Once = "once",
        /// Comes in bursts with pauses between.
        Bursty = "bursty",
    }
}

words! {
    /// Which events data outlives.
    Persistence {
        /// The data stays as long as the pool exists.
        #[default]
        Pool = "pool",
        /// The file is removed when the process that created it ends.
        Process = "process",
        /// Survives every process of the node, and takes none of its memory (`files` media).
        Node = "node",
        /// After `fsync` the data is on stable storage.
        Durable = "durable",
        /// After `fsync` and `close` the pool's origin has the data.
        Origin = "origin",
    }
}

words! {
    /// How damage of an object's stored bytes is noticed.
    Integrity {
        /// Damage isn't noticed.
        #[default]
        None = "none",
        /// Checksums of written data are stored, and verified by each reader.
        Checksum = "checksum",
    }
}

words! {
    /// Reaction of a batch to a failed operation.
    Failure {
        /// Stop at the first failure.
        #[default]
        Stop = "stop",
        /// Carry out the remaining operations.
        Continue = "continue",
        /// Undo the completed operations.
        Rollback = "rollback",
    }
}

words! {
    /// Treatment of an operation that an object's controls rule out.
    OnViolation {
        /// The operation fails, and is listed as a violation.
        #[default]
        Refuse = "refuse",
        /// The operation is carried out, and is listed as a violation.
        Report = "report",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_and_read() {
        for c in [
            Consistency::Sequential,
            Consistency::Commit,
            Consistency::Session,
            Consistency::Eventual(1),
            Consistency::Eventual(2000),
            Consistency::Eventual(MAX_STALENESS_MS),
        ] {
            assert_eq!(c.to_string().parse(), Ok(c));
        }
        for p in Parallelism::ALL {
            assert_eq!(p.word().parse(), Ok(*p));
        }
        assert_eq!(Consistency::Eventual(2000).to_string(), "eventual(2s)");
    }

    #[test]
    fn what_is_no_value_is_refused_in_words() {
        for (text, says) in [
            ("eventual", "how old"),
            ("eventual(0ms)", "isn't a time"),
            ("eventual(2h)", "isn't a time"),
            ("eventual(99999999s)", "isn't a time"),
            ("strict", "isn't one of sequential, commit"),
        ] {
            let e = text.parse::<Consistency>().unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
        let e = "replicated(2)".parse::<Persistence>().unwrap_err();
        assert!(
            e.contains("isn't one of pool, process, node, durable, origin"),
            "{e}"
        );
    }
}
