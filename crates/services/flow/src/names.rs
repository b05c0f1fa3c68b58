//! Checks of names and paths from clients. Only the characters and forms that are listed here are
//! accepted.

use crate::Result;

/// Maximum length of a workflow's name, and of a component of a path. Bytes.
pub const MAX_NAME_BYTES: usize = 100;
/// Maximum length of a file's path in a workflow's directory: bytes, and components.
pub const MAX_PATH_BYTES: usize = 1000;
pub const MAX_PATH_PARTS: usize = 16;
/// Maximum length of a user's name. Bytes.
const MAX_USER_NAME_BYTES: usize = 64;
/// Maximum length of a parameter's value. Bytes.
pub const MAX_VALUE_BYTES: usize = 1000;

/// Checks the name of a workflow or campaign: letters, digits, `-`, `_` and `.`. The name can't
/// begin with `-` or `.`.
///
/// # Errors
/// A message: the name is empty, too long, or has other characters.
pub fn check_name(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match name.len() {
        1..=MAX_NAME_BYTES if name.chars().all(is_good) && !name.starts_with(['.', '-']) => Ok(()),
        _ => Err(format!(
            "this is no name: write up to {MAX_NAME_BYTES} letters, digits, -, _ and ., which isn't \
             first"
        )),
    }
}

/// Checks a user's name.
///
/// # Errors
/// A message: the text can't be a user's name.
pub fn check_user(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    match name.len() {
        1..=MAX_USER_NAME_BYTES if name.chars().all(is_good) && !name.starts_with(['.', '-']) => {
            Ok(())
        }
        _ => Err("this is no name of a user".into()),
    }
}

/// Checks the name of a rule or parameter: a Python identifier, in ASCII.
///
/// # Errors
/// A message: the name isn't an identifier.
pub fn check_identifier(name: &str) -> Result<()> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.len() {
        1..=MAX_NAME_BYTES
            if name.chars().all(is_good) && !name.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            Ok(())
        }
        _ => Err(
            "this is no name of a rule or parameter: letters, digits and _, no digit first".into(),
        ),
    }
}

/// Splits a path relative to a workflow's directory into its components.
///
/// # Errors
/// A message: the path is empty, too long or absolute; a component is `.`, `..`, empty, or has a
/// control character; or the path leads into Snakemake's own directory.
pub fn path_parts(path: &str) -> Result<Vec<&str>> {
    if path.len() > MAX_PATH_BYTES {
        return Err(format!("a path has {MAX_PATH_BYTES} bytes at most"));
    }
    let parts: Vec<&str> = path.split('/').collect();
    if parts.len() > MAX_PATH_PARTS {
        return Err(format!("a path has {MAX_PATH_PARTS} parts at most"));
    }
    for part in &parts {
        match *part {
            "" | "." | ".." => {
                return Err("a path is relative, without empty parts, '.' and '..'".into());
            }
            part if part.len() > MAX_NAME_BYTES => {
                return Err(format!(
                    "a part of a path has {MAX_NAME_BYTES} bytes at most"
                ));
            }
            part if part.chars().any(char::is_control) => {
                return Err("a path has no control characters".into());
            }
            _ => {}
        }
    }
    match parts[0] {
        ".snakemake" => Err("'.snakemake' belongs to Snakemake".into()),
        _ => Ok(parts),
    }
}

/// Checks a target or value that becomes an argument of Snakemake.
///
/// # Errors
/// A message: the word is empty, too long, begins with `-`, or has a control character.
pub fn check_word(word: &str) -> Result<()> {
    match word.len() {
        1..=MAX_VALUE_BYTES if !word.starts_with('-') && !word.chars().any(char::is_control) => {
            Ok(())
        }
        _ => Err(format!(
            "a target or value has 1 to {MAX_VALUE_BYTES} bytes, no control characters, and doesn't \
             begin with '-'"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_fuzz::Random;

    #[test]
    fn names() {
        for good in ["a", "case7", "a.b-c_d", "A", &"x".repeat(100)] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            ".a",
            "-a",
            "a/b",
            "a b",
            "ä",
            "<img>",
            "a\0",
            &"x".repeat(101),
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for bad in ["", "1a", "a-b", "a b", "--config", "a\n"] {
            assert!(check_identifier(bad).is_err(), "{bad}");
        }
        for bad in ["", "-n", "a\nb", &"x".repeat(1001)] {
            assert!(check_word(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_stay_below() {
        assert_eq!(path_parts("data/ä b.txt"), Ok(vec!["data", "ä b.txt"]));
        let (long, deep) = ("x".repeat(101), ["a"; 17].join("/"));
        for bad in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/..",
            "./a",
            "a\0b",
            "a\nb",
            ".snakemake/x",
            &long,
            &deep,
        ] {
            assert!(path_parts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_random_path_leads_out() {
        let mut random = Random::new(7);
        for _ in 0..20_000 {
            let n = random.below(12);
            let text: String = (0..n)
                .map(|_| *random.one_of(&['/', '.', 'a', '\0', '~', '\u{202e}', '%', '\\']))
                .collect();
            if let Ok(parts) = path_parts(&text) {
                let bad = ["", ".", ".."];
                assert!(parts.iter().all(|p| !bad.contains(p)), "{text:?}");
                assert!(!text.contains('\0') && !text.starts_with('/'), "{text:?}");
            }
        }
    }
}
