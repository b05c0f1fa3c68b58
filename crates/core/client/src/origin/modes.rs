//! Modes of paths, computed name by name as a path is resolved. The modes decide whether an entry
//! is in the pool or at the origin.

use forebay_controls::Pattern;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How changes of files that are at the origin are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginMode {
    /// Never in the pool: programs use the origin's own files.
    Off,
    /// No file can be changed.
    ReadOnly,
    /// Changes are written to the origin in the background.
    #[default]
    WriteBack,
    /// As write-back, but fsync(2) and close(2) return only when the origin has the changes.
    WriteThrough,
    /// Changes are never written to the origin.
    Scratch,
}

impl OriginMode {
    /// Whether changes are written to the origin.
    pub fn is_written(self) -> bool {
        matches!(self, OriginMode::WriteBack | OriginMode::WriteThrough)
    }
}

const MODES: [(&str, OriginMode); 5] = [
    ("off", OriginMode::Off),
    ("read-only", OriginMode::ReadOnly),
    ("write-back", OriginMode::WriteBack),
    ("write-through", OriginMode::WriteThrough),
    ("scratch", OriginMode::Scratch),
];

impl fmt::Display for OriginMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = MODES.iter().find(|(_, mode)| mode == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

impl FromStr for OriginMode {
    type Err = String;

    fn from_str(text: &str) -> Result<OriginMode, String> {
        let found = MODES.iter().find(|(word, _)| *word == text);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            format!(
                "there is no mode '{text}'; choose off, read-only, write-back, write-through or scratch"
            )
        })
    }
}

/// The mode of the paths that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRule {
    /// A pattern as in rules of controls: `/out/**`, from the root of the pool.
    pub path: String,
    pub mode: OriginMode,
}

/// The modes of paths, computed name by name.
pub struct Modes {
    rules: Vec<(Pattern, OriginMode)>,
    mode: OriginMode,
}

/// The state of matching each pattern at a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModesAt(Vec<u64>);

/// Where an entry of a directory of the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    Pool,
    /// At the origin only: the mode of the entry, and of everything below it, is `off`.
    Origin,
    /// At the origin only, unless it is a directory.
    OriginUnlessDirectory,
}

impl Modes {
    pub(super) fn new(rules: &[OriginRule], mode: OriginMode) -> Modes {
        let rule = |rule: &OriginRule| Some((Pattern::parse(&rule.path).ok()?, rule.mode));
        Modes {
            rules: rules.iter().filter_map(rule).collect(),
            mode,
        }
    }

    /// The state of matching the patterns at a path of the pool.
    pub fn at(&self, path: &[u8]) -> ModesAt {
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let root = ModesAt(self.rules.iter().map(|(p, _)| p.root()).collect());
        names.fold(root, |at, name| self.below(&at, name))
    }

    /// The state of matching the patterns at the entry `name` of a directory.
    pub fn below(&self, at: &ModesAt, name: &[u8]) -> ModesAt {
        let all = self.rules.iter().zip(&at.0);
        ModesAt(all.map(|((p, _), state)| p.below(*state, name)).collect())
    }

    pub(super) fn mode(&self, at: &ModesAt) -> OriginMode {
        let mut all = self.rules.iter().zip(&at.0).rev();
        let found = all.find(|((pattern, _), state)| pattern.matches(**state));
        found.map_or(self.mode, |((_, mode), _)| *mode)
    }

    /// Whether a directory is in the pool: the directory, or something below it, may have another
    /// mode than `off`.
    pub(super) fn is_in_pool(&self, at: &ModesAt) -> bool {
        let mut all = self.rules.iter().zip(&at.0);
        self.mode(at) != OriginMode::Off
            || all.any(|((p, mode), state)| *mode != OriginMode::Off && p.goes_on(*state))
    }

    /// Whether entries of a directory may be at the origin only.
    pub fn may_hold_origin_only(&self, dir: &ModesAt) -> bool {
        for ((pattern, mode), state) in self.rules.iter().zip(&dir.0).rev() {
            if *mode == OriginMode::Off && pattern.goes_on(*state) {
                return true;
            }
            // Earlier rules have no effect in the directory.
            if *mode != OriginMode::Off && pattern.matches_all_in(*state) {
                return false;
            }
        }
        self.mode == OriginMode::Off
    }

    /// Where the entry `name` of a directory is: in the pool, or at the origin.
    pub fn lead(&self, dir: &ModesAt, name: &[u8]) -> Lead {
        let at = self.below(dir, name);
        match (self.mode(&at), self.is_in_pool(&at)) {
            (OriginMode::Off, true) => Lead::OriginUnlessDirectory,
            (OriginMode::Off, false) => Lead::Origin,
            _ => Lead::Pool,
        }
    }
}
