//! The list of a site's users that have campaigns.

use super::EtcdPlace;
use super::etcd::Etcd;
use crate::Result;
use std::path::{Path, PathBuf};

/// Default directory of records, below a user's home directory.
pub const IN_HOME: &str = ".local/share/forebay/campaigns";

/// The location of all users' campaigns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Everyone {
    Etcd(EtcdPlace),
    /// One directory for each user: the parent of the users' directories, and the path below each
    /// of them.
    Directories(PathBuf, PathBuf),
    /// [`IN_HOME`] of each user.
    Homes,
    /// One directory, whose campaigns belong to one user.
    One(PathBuf),
}

impl Everyone {
    /// Parses a registry's path, in which `{user}` stands for the user's name.
    pub(crate) fn of_directories(path: &str) -> Everyone {
        match path.split_once("/{user}") {
            Some((parent, rest)) if rest.is_empty() || rest.starts_with('/') => {
                let rest = rest.trim_start_matches('/');
                Everyone::Directories(parent.into(), rest.into())
            }
            _ => Everyone::One(path.into()),
        }
    }

    /// Returns the names of the users that have records, sorted. Some may not be users of this
    /// host. `homes` returns this host's users and their home directories.
    ///
    /// # Errors
    /// etcd doesn't answer, or refuses; a directory can't be read; the registry belongs to one
    /// user.
    pub fn names(
        &self,
        homes: impl FnOnce() -> Result<Vec<(String, PathBuf)>>,
    ) -> Result<Vec<String>> {
        let mut names = match self {
            Everyone::Etcd(place) => Etcd::users(place)?,
            Everyone::Directories(parent, rest) => {
                below(parent, rest).map_err(|e| format!("{}: {e}", parent.display()))?
            }
            Everyone::Homes => homes()?
                .into_iter()
                .filter(|(_, home)| home.join(IN_HOME).is_dir())
                .map(|(name, _)| name)
                .collect(),
            Everyone::One(path) => {
                return Err(format!(
                    "the registry {} is of one user: for all users, write {{user}} in its path, or \
                     an etcd",
                    path.display()
                ));
            }
        };
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// Returns the names of entries of `parent` that contain a directory `rest`.
fn below(parent: &Path, rest: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && entry.path().join(rest).is_dir()
        {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Result<Vec<(String, PathBuf)>> {
        Err("not asked".into())
    }

    #[test]
    fn who_has_campaigns() {
        let top = std::env::temp_dir().join(format!("forebay-users-{}", std::process::id()));
        for dir in ["ann/x", "ben/x", "cid", IN_HOME] {
            std::fs::create_dir_all(top.join(dir)).unwrap();
        }
        let names = |path: String| Everyone::of_directories(&path).names(none);
        let top_text = top.display();
        assert_eq!(
            names(format!("{top_text}/{{user}}/x")).unwrap(),
            ["ann", "ben"]
        );
        assert!(
            names(format!("{top_text}/{{user}}"))
                .unwrap()
                .contains(&"cid".into())
        );
        assert!(
            names("/no/such/{user}".into())
                .unwrap_err()
                .contains("/no/such")
        );
        for one in ["/of/one", "/of/{user}-x"] {
            assert!(
                names(one.into()).unwrap_err().contains("of one user"),
                "{one}"
            );
        }
        let homes = || {
            Ok(vec![
                ("dee".into(), top.clone()),
                ("eve".into(), "/no/such".into()),
            ])
        };
        assert_eq!(Everyone::Homes.names(homes).unwrap(), ["dee"]);
        std::fs::remove_dir_all(&top).unwrap();
    }
}
