//! Named sets of tracepoints (*profiles*): TOML files with a description and a list of names, in
//! which `*` stands for any characters.

use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use forebay_trace::points::POINTS;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Keys of a profile's file.
const KEYS: &str = "description = \"text\" and points = [\"NAME\", ...]";

/// A named set of tracepoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The profile's purpose, in one line.
    pub description: String,
    /// Names and patterns of tracepoints.
    pub points: Vec<String>,
}

macro_rules! shipped {
    ($($name:literal)*) => {
        /// The profiles that come with Forebay: names and texts.
        pub const SHIPPED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../profiles/", $name, ".toml")))),*];
    };
}

shipped! {
    "create-analysis" "small-io" "data-path" "metadata" "locks" "network" "startup" "io-pattern" "coarse"
}

/// Whether a name matches a pattern.
pub fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => {
            let Some(left) = name.strip_prefix(head) else {
                return false;
            };
            (0..=left.len()).any(|i| left.is_char_boundary(i) && fits(rest, &left[i..]))
        }
    }
}

impl Profile {
    /// Parses a profile's text.
    ///
    /// # Errors
    /// A sentence about the mistake in the text.
    pub fn parse(text: &str) -> Result<Profile, String> {
        let table = DeTable::parse(text).map_err(|e| e.to_string().trim().replace('\n', " "))?;
        let mut profile = Profile {
            description: String::new(),
            points: Vec::new(),
        };
        for (key, value) in table.get_ref() {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("description", DeValue::String(text)) => profile.description = text.to_string(),
                ("points", DeValue::Array(names)) => {
                    for name in names.iter() {
                        let DeValue::String(name) = name.get_ref() else {
                            return Err("a name of a point isn't a string".into());
                        };
                        profile.points.push(name.to_string());
                    }
                }
                ("description" | "points", _) => {
                    return Err(format!(
                        "'{}' has the wrong type: a profile has {KEYS}",
                        key.get_ref()
                    ));
                }
                (key, _) => return Err(format!("'{key}' isn't known: a profile has {KEYS}")),
            }
        }
        if profile.points.is_empty() {
            Err(format!("it names no points: a profile has {KEYS}"))
        } else {
            Ok(profile)
        }
    }

    /// Finds the profile with this name, or in the file with this path.
    ///
    /// # Errors
    /// A sentence with the file and the mistake in it.
    pub fn find(name: &str) -> Result<Option<Profile>, String> {
        if let Some((_, text)) = SHIPPED.iter().find(|s| s.0 == name) {
            return Profile::parse(text).map(Some);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|e| e != "toml") {
            return Ok(None);
        }
        let text = untrusted::read_text(path, Links::Named, MAX_SETTINGS)
            .map_err(|e| format!("{name}: {e}"))?;
        Profile::parse(&text)
            .map(Some)
            .map_err(|e| format!("{name}: {e}"))
    }
}

/// Returns the tracepoints for names, patterns and profiles, as indices of [`POINTS`], without
/// repetition.
///
/// # Errors
/// A sentence that names the word that is neither a tracepoint nor a profile.
pub fn chosen(words: &[String]) -> Result<Vec<usize>, String> {
    let mut points = Vec::new();
    for word in words {
        let patterns = match Profile::find(word)? {
            Some(profile) => profile.points,
            None => vec![word.clone()],
        };
        for pattern in patterns {
            let before = points.len();
            points.extend((0..POINTS.len()).filter(|&i| fits(&pattern, POINTS[i].name)));
            if points.len() == before {
                return Err(format!(
                    "'{pattern}' is neither a tracepoint nor a profile (forebay trace list shows \
                        them), nor a file that ends with .toml"
                ));
            }
        }
    }
    points.sort_unstable();
    points.dedup();
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_profiles_name_points_that_exist() {
        for (name, text) in SHIPPED {
            let profile = Profile::parse(text).unwrap();
            assert!(!profile.description.is_empty(), "{name}");
            assert!(!chosen(&[(*name).to_owned()]).unwrap().is_empty(), "{name}");
        }
    }

    #[test]
    fn patterns_and_errors() {
        assert!(fits("STORE_*_EXIT", "STORE_CREATE_EXIT") && fits("*", "") && fits("A", "A"));
        assert!(!fits("STORE_*", "SHARD_WAIT_EXIT") && !fits("A", "AB") && !fits("", "A"));
        let two = chosen(&["STORE_CREATE_ENTER".into(), "STORE_CREATE_*".into()]).unwrap();
        assert_eq!(two.len(), 2);
        assert!(chosen(&["NOTHING".into()]).unwrap_err().contains("NOTHING"));
        assert!(
            chosen(&["/no/such/file.toml".into()])
                .unwrap_err()
                .contains("No such file")
        );
        assert!(Profile::parse("points = 3").is_err());
        assert!(Profile::parse("description = 'a'\npoints = []\nextra = 1").is_err());
    }
}
