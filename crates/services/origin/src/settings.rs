//! Settings that users change while the pool exists: paths that aren't evicted to make room, and
//! whether writing back is on hold. The settings are stored in a file of the node's directory.

use forebay_runtime::threads::lock;
use forebay_runtime::untrusted::{self, Links, MAX_SETTINGS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Name of the settings file in the node's directory.
const NAME: &str = "origin-settings.json";

/// Content of the settings file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// Paths at the origin that aren't evicted to make room, nor anything below them.
    pinned: BTreeSet<Vec<u8>>,
    /// Whether writing back in the background is on hold.
    is_held: bool,
}

/// The settings in memory, and their file.
pub struct Settings {
    file: PathBuf,
    kept: Mutex<Kept>,
}

impl Settings {
    /// Reads the settings of the node in `dir`.
    ///
    /// # Errors
    /// The node has settings that can't be read.
    pub fn load(dir: &Path) -> Result<Settings> {
        let file = dir.join(NAME);
        let kept = match untrusted::read(&file, Links::Refuse, MAX_SETTINGS) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(Error::other)?,
            Err(e) if e.kind() == ErrorKind::NotFound => Kept::default(),
            Err(e) => return Err(e),
        };
        Ok(Settings {
            file,
            kept: Mutex::new(kept),
        })
    }

    fn change(&self, change: impl FnOnce(&mut Kept)) -> Result<()> {
        let mut kept = lock(&self.kept);
        let mut new = kept.clone();
        change(&mut new);
        let part = self.file.with_extension("part");
        std::fs::write(&part, serde_json::to_vec(&new)?)?;
        std::fs::rename(&part, &self.file)?;
        *kept = new;
        Ok(())
    }

    /// Pins a path, or unpins it.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub fn pin(&self, path: &[u8], is_pinned: bool) -> Result<()> {
        self.change(|kept| {
            if is_pinned {
                kept.pinned.insert(path.to_vec());
            } else {
                kept.pinned.remove(path);
            }
        })
    }

    /// Stops writing back, or resumes it.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub fn hold(&self, is_held: bool) -> Result<()> {
        self.change(|kept| kept.is_held = is_held)
    }

    pub fn is_held(&self) -> bool {
        lock(&self.kept).is_held
    }

    /// Whether a path, or one above it, is pinned.
    pub fn is_pinned(&self, path: &[u8]) -> bool {
        let kept = lock(&self.kept);
        let mut above = path;
        loop {
            if kept.pinned.contains(above) {
                return true;
            }
            match above.iter().rposition(|&b| b == b'/') {
                Some(cut) => above = &above[..cut],
                None => return kept.pinned.contains(&b""[..]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_outlive_the_service() {
        let dir = std::env::temp_dir().join(format!("fb-settings-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let settings = Settings::load(&dir).unwrap();
        assert!(!settings.is_pinned(b"a/b") && !settings.is_held());
        settings.pin(b"a/b", true).unwrap();
        settings.hold(true).unwrap();
        let next = Settings::load(&dir).unwrap();
        assert!(next.is_held() && next.is_pinned(b"a/b") && next.is_pinned(b"a/b/c\xff"));
        assert!(!next.is_pinned(b"a") && !next.is_pinned(b"a/bc") && !next.is_pinned(b""));
        next.pin(b"a/b", false).unwrap();
        next.pin(b"", true).unwrap();
        assert!(next.is_pinned(b"x") && next.is_pinned(b""));
        std::fs::write(dir.join(NAME), b"{").unwrap();
        assert!(Settings::load(&dir).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
