//! Modes of paths, computed name by name as a path is resolved; where an entry lies that follows.

use super::config::{OriginMode, OriginRule};
use forebay_controls::Pattern;

/// The modes of paths, computed name by name.
pub struct Modes {
    rules: Vec<(Pattern, OriginMode)>,
    mode: OriginMode,
}

/// A path as the patterns see it: the state of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModesAt(Vec<u64>);

/// Where an entry of a directory of the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    Pool,
    /// At the origin only: its mode is `off`, and that of all below it.
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

    /// The state of the patterns at a path of the pool.
    pub fn at(&self, path: &[u8]) -> ModesAt {
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let root = ModesAt(self.rules.iter().map(|(p, _)| p.root()).collect());
        names.fold(root, |at, name| self.below(&at, name))
    }

    /// The state of the patterns at the entry `name` of a directory.
    pub fn below(&self, at: &ModesAt, name: &[u8]) -> ModesAt {
        let all = self.rules.iter().zip(&at.0);
        ModesAt(all.map(|((p, _), state)| p.below(*state, name)).collect())
    }

    pub(super) fn mode(&self, at: &ModesAt) -> OriginMode {
        let mut all = self.rules.iter().zip(&at.0).rev();
        let found = all.find(|((pattern, _), state)| pattern.matches(**state));
        found.map_or(self.mode, |((_, mode), _)| *mode)
    }

    /// Whether a directory is in the pool: it, or something below, may have another mode than `off`.
    pub(super) fn is_in_pool(&self, at: &ModesAt) -> bool {
        let mut all = self.rules.iter().zip(&at.0);
        self.mode(at) != OriginMode::Off
            || all.any(|((p, mode), state)| *mode != OriginMode::Off && p.goes_on(*state))
    }

    /// Whether entries of a directory may be at the origin only.
    pub fn may_hold_outer(&self, dir: &ModesAt) -> bool {
        for ((pattern, mode), state) in self.rules.iter().zip(&dir.0).rev() {
            if *mode == OriginMode::Off && pattern.goes_on(*state) {
                return true;
            }
            // Earlier rules don't count in it.
            if *mode != OriginMode::Off && pattern.matches_all_in(*state) {
                return false;
            }
        }
        self.mode == OriginMode::Off
    }

    /// Where the entry `name` of a directory is.
    pub fn lead(&self, dir: &ModesAt, name: &[u8]) -> Lead {
        let at = self.below(dir, name);
        match (self.mode(&at), self.is_in_pool(&at)) {
            (OriginMode::Off, true) => Lead::OriginUnlessDirectory,
            (OriginMode::Off, false) => Lead::Origin,
            _ => Lead::Pool,
        }
    }
}
