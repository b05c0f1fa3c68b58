//! The form in which users write media, sizes and times: `memory:4G`, `files:/local/ssd:100G`,
//! `2h`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The kinds of media.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MediumKind {
    /// Shared memory. Lost at a reboot of the node.
    Memory,
    /// A segment file in a directory on an SSD or any other file system.
    Files(PathBuf),
}

/// A medium as the user requests it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediumSpec {
    pub kind: MediumKind,
    /// Capacity, a multiple of 1 MiB. Bytes.
    pub capacity: u64,
}

const MIB: u64 = 1 << 20;

/// Parses a size in bytes: `4G`, `512M`, `1.5T`, `4096`. Units are binary, with an optional `B` or
/// `iB`.
///
/// # Errors
/// A sentence with the reason.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a size: write a number and K, M, G or T, as in 4G");
    let t = text.trim();
    let t = t
        .strip_suffix("iB")
        .or_else(|| t.strip_suffix('B'))
        .unwrap_or(t);
    let (number, factor) = match t.chars().last().ok_or_else(bad)?.to_ascii_uppercase() {
        'K' => (&t[..t.len() - 1], 1u64 << 10),
        'M' => (&t[..t.len() - 1], 1 << 20),
        'G' => (&t[..t.len() - 1], 1 << 30),
        'T' => (&t[..t.len() - 1], 1 << 40),
        '0'..='9' => (t, 1),
        _ => return Err(bad()),
    };
    let number: f64 = number.parse().map_err(|_| bad())?;
    let bytes = number * factor as f64;
    if !(bytes >= 0.0 && bytes < (1u64 << 50) as f64) {
        return Err(bad());
    }
    Ok(bytes as u64)
}

/// Maximum time that a user can write: ten years. Seconds.
const MAX_TIME_SECONDS: u64 = 10 * 365 * 86_400;

/// Parses a time as users write it: `2h`, `1d12h`, `90s`, `300`. Returns seconds, at least 1.
///
/// # Errors
/// A sentence, if `text` is no time or is longer than ten years.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is no time: write 90s, 30m, 2h, 1d12h or 1w");
    let (mut all, mut number) = (0u64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return Err(bad()),
        };
        let n: u64 = std::mem::take(&mut number).parse().map_err(|_| bad())?;
        all = n
            .checked_mul(unit)
            .and_then(|n| all.checked_add(n))
            .ok_or_else(bad)?;
    }
    if !number.is_empty() {
        // A number without a unit must be alone, and means seconds.
        if number.len() != text.len() {
            return Err(bad());
        }
        all = number.parse().map_err(|_| bad())?;
    }
    match all {
        1..=MAX_TIME_SECONDS => Ok(all),
        _ => Err(format!("'{text}': between 1s and 3650d")),
    }
}

/// Formats a size for users: `4.0 GiB`, `512 B`.
pub fn format_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// Formats a number with its noun: `1 file`, `2 files`, `2 directories`, `2 processes`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 {
        return format!("1 {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) => format!("{n} {stem}ies"),
        None if noun.ends_with('s') => format!("{n} {noun}es"),
        None => format!("{n} {noun}s"),
    }
}

impl FromStr for MediumSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, size) = match text.split_once(':') {
            Some(("memory", size)) => (MediumKind::Memory, size),
            Some(("files", rest)) => {
                let (dir, size) = rest.rsplit_once(':').ok_or_else(|| {
                    format!(
                        "medium '{text}': write files:DIRECTORY:SIZE, as in files:/local/ssd:100G"
                    )
                })?;
                let dir = PathBuf::from(dir);
                if !dir.is_absolute() {
                    return Err(format!(
                        "medium '{text}': the directory must be an absolute path"
                    ));
                }
                (MediumKind::Files(dir), size)
            }
            None if text == "memory" => {
                return Err("medium 'memory': its size is missing; write memory:4G".into());
            }
            _ => {
                return Err(format!(
                    "unknown medium '{text}': write memory:SIZE or files:DIRECTORY:SIZE, as in memory:4G"
                ));
            }
        };
        let capacity = parse_size(size)? / MIB * MIB;
        if capacity < MIB {
            return Err(format!("medium '{text}': the size must be at least 1M"));
        }
        Ok(MediumSpec { kind, capacity })
    }
}

impl fmt::Display for MediumSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            MediumKind::Memory => write!(f, "memory:{}", compact(self.capacity)),
            MediumKind::Files(d) => write!(f, "files:{}:{}", d.display(), compact(self.capacity)),
        }
    }
}

/// Formats a size so that [`parse_size`] returns exactly the same size.
fn compact(bytes: u64) -> String {
    for (unit, factor) in [("T", 1u64 << 40), ("G", 1 << 30), ("M", 1 << 20)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!(count(1, "file"), "1 file");
        assert_eq!(count(0, "file"), "0 files");
        assert_eq!(count(2, "directory"), "2 directories");
        assert_eq!(count(3, "process"), "3 processes");
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("1.5MiB"), Ok(3 << 19));
        assert_eq!(parse_size("12"), Ok(12));
        for bad in ["", "G", "-1G", "4X", "1e99T", "NaN", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn media_round_trip() {
        for text in ["memory:4G", "files:/local/ssd:100G", "files:/a:b:3M"] {
            let spec: MediumSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        for bad in [
            "memory",
            "memory:0",
            "files:rel:1G",
            "files:/a",
            "tape:1G",
            "memory:1K",
        ] {
            assert!(bad.parse::<MediumSpec>().is_err(), "{bad}");
        }
    }
}
