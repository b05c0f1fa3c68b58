//! A request for a campaign as one word, for workflow systems: `100TB,10000files,scratch,2d`.

use crate::Result;
use forebay_media::{parse_size, parse_time};

/// The parts of a request for a campaign. Any part may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Maximum number of bytes.
    pub bytes: Option<u64>,
    /// Maximum number of files, including directories and links.
    pub files: Option<u64>,
    pub tier: Option<String>,
    /// Seconds until the campaign ends.
    pub time: Option<u64>,
}

impl Spec {
    /// Parses the word. The word's parts, in any order, are recognized by their form: a size has a
    /// unit of bytes, a time has a unit of time, and a tier's name begins with a letter.
    ///
    /// # Errors
    /// The part that is invalid or appears twice.
    pub fn parse(text: &str) -> Result<Spec> {
        let mut spec = Spec::default();
        for part in text.split(',').map(str::trim) {
            let twice = |is_there: bool| {
                if is_there {
                    Err(format!("'{text}' says twice what '{part}' says"))
                } else {
                    Ok(())
                }
            };
            if let Some(number) = part.strip_suffix("files").or(part.strip_suffix("file")) {
                twice(spec.files.is_some())?;
                let files = number.trim().parse();
                spec.files = Some(files.map_err(|_| format!("'{part}' is no number of files"))?);
            } else if part.starts_with(|c: char| c.is_ascii_alphabetic()) {
                twice(spec.tier.is_some())?;
                spec.tier = Some(part.to_owned());
            } else if part.ends_with(['s', 'm', 'h', 'd', 'w']) {
                twice(spec.time.is_some())?;
                spec.time = Some(parse_time(part)?);
            } else {
                twice(spec.bytes.is_some())?;
                spec.bytes = Some(size(part).map_err(|_| {
                    format!(
                        "'{part}' is no part of a campaign: write a size (100T), a number of \
                         files (10000files), a tier's name, or a time (2d)"
                    )
                })?);
            }
        }
        Ok(spec)
    }
}

/// Parses a size: `TB` etc. are powers of 1000, as in the Python package; `TiB` and `T` are powers
/// of 1024.
fn size(text: &str) -> Result<u64> {
    if text.ends_with(|c: char| c.is_ascii_digit()) {
        return Err("a size has a unit".into());
    }
    let Some(rest) = text.strip_suffix('B').filter(|rest| !rest.ends_with('i')) else {
        return parse_size(text);
    };
    let digits = rest.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match &rest[digits.len()..] {
        "" => 0,
        unit => {
            1 + "KMGTP"
                .find(&unit.to_uppercase())
                .ok_or("no unit of bytes")?
        }
    };
    let number: f64 = digits.trim().parse().map_err(|_| "no number")?;
    match number * 1000f64.powi(power as i32) {
        bytes if (0.0..(1u64 << 60) as f64).contains(&bytes) => Ok(bytes as u64),
        _ => Err("out of range".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_any_order() {
        let wanted = Spec {
            bytes: Some(100_000_000_000_000),
            files: Some(10_000),
            tier: Some("scratch".into()),
            time: Some(2 * 86_400),
        };
        assert_eq!(
            Spec::parse("100TB,10000files,scratch,2d"),
            Ok(wanted.clone())
        );
        // The meaning of a number without a unit isn't known: bytes, files or days.
        assert!(Spec::parse("100").unwrap_err().contains("write a size"));
        assert_eq!(Spec::parse("2d, scratch ,100TB,10000files"), Ok(wanted));
        assert_eq!(Spec::parse("5m").unwrap().time, Some(300));
        for (text, bytes) in [
            ("5M", 5 << 20),
            ("5MiB", 5 << 20),
            ("5MB", 5_000_000),
            ("1.5kB", 1500),
        ] {
            assert_eq!(Spec::parse(text).unwrap().bytes, Some(bytes), "{text}");
        }
        assert_eq!(Spec::parse("1w").unwrap().time, Some(7 * 86_400));
        for bad in [
            "",
            "1T,2T",
            "scratch,home",
            "xfiles",
            "10 horses",
            "1d,2h",
            "-1T",
            "1XB",
            "1MMB",
        ] {
            assert!(Spec::parse(bad).is_err(), "{bad}");
        }
    }
}
