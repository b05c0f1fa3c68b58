//! The selection of a source's objects for a staging, by patterns of paths that include and
//! exclude.
//!
//! Patterns have the syntax of rules ([`forebay_controls::Pattern`]), and are relative to the
//! source. A pattern without `/` matches a name at any depth. If a pattern includes a directory,
//! everything below it is included. Excluded directories aren't listed. Excluding has precedence.

use forebay_controls::Pattern;

/// The patterns of a staging. Without patterns, everything is selected.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

/// Parses a pattern such as `*.h5` (at any depth), `logs/*.txt` or `**/tmp/**`.
fn parse(text: &str) -> Result<Pattern, String> {
    let relative = text.trim_start_matches('/').trim_end_matches('/');
    let whole = if text.trim_end_matches('/').contains('/') {
        format!("/{relative}")
    } else {
        format!("/**/{relative}")
    };
    Pattern::parse(&whole).map_err(|e| format!("'{text}' is no pattern: {e}"))
}

impl Selection {
    /// Returns the selection that these patterns make.
    ///
    /// # Errors
    /// A sentence about the first text that isn't a valid pattern.
    pub fn new(include: &[String], exclude: &[String]) -> Result<Selection, String> {
        let all = |texts: &[String]| texts.iter().map(|t| parse(t)).collect::<Result<_, _>>();
        Ok(Selection {
            include: all(include)?,
            exclude: all(exclude)?,
        })
    }

    /// Whether only objects that match an including pattern are staged.
    pub(crate) fn is_narrow(&self) -> bool {
        !self.include.is_empty()
    }

    /// Whether the object at `below` is excluded. The caller knows that its directory isn't.
    pub(crate) fn excludes(&self, below: &[u8]) -> bool {
        self.exclude.iter().any(|p| p.matches(state(p, below).0))
    }

    /// Whether the object at `below`, or a directory above it, is included.
    pub(crate) fn includes(&self, below: &[u8]) -> bool {
        !self.is_narrow() || self.include.iter().any(|p| state(p, below).1)
    }

    /// Whether the directory at `below` may contain something that is included.
    pub(crate) fn may_include_below(&self, below: &[u8]) -> bool {
        self.includes(below) || self.include.iter().any(|p| p.goes_on(state(p, below).0))
    }
}

/// Returns the pattern's state after the path `below`, and whether it matches the path or a
/// directory above it.
fn state(p: &Pattern, below: &[u8]) -> (u64, bool) {
    let names = below.split(|&b| b == b'/').filter(|n| !n.is_empty());
    names.fold((p.root(), false), |(state, matched), name| {
        let state = p.below(state, name);
        (state, matched || p.matches(state))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(include: &[&str], exclude: &[&str]) -> Selection {
        let texts = |list: &[&str]| list.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
        Selection::new(&texts(include), &texts(exclude)).unwrap()
    }

    #[test]
    fn patterns_select() {
        let all = of(&[], &[]);
        assert!(all.includes(b"a/b") && !all.excludes(b"a/b") && !all.is_narrow());
        let s = of(&[], &["*.tmp", "/logs", "data/**/old", "cache/"]);
        for path in [
            "x.tmp",
            "a/b.tmp",
            "logs",
            "data/old",
            "data/1/2/old",
            "cache",
            "a/cache",
        ] {
            assert!(s.excludes(path.as_bytes()), "{path}");
        }
        for path in ["x.tmpl", "a/logs", "old", "data"] {
            assert!(!s.excludes(path.as_bytes()), "{path}");
        }
        let s = of(&["*.h5", "results", "in/deck/**"], &[]);
        for path in [
            "a.h5",
            "x/y/a.h5",
            "results",
            "results/1/x",
            "q/results/x",
            "in/deck/a",
        ] {
            assert!(s.includes(path.as_bytes()), "{path}");
        }
        for path in ["a.h5x", "in/deck", "in", "x/deck/a"] {
            assert!(!s.includes(path.as_bytes()), "{path}");
        }
        let s = of(&["/in/deck/*.txt"], &[]);
        assert!(s.may_include_below(b"in") && s.may_include_below(b"in/deck"));
        assert!(!s.may_include_below(b"out") && !s.may_include_below(b"in/x"));
    }

    #[test]
    fn what_is_no_pattern() {
        for bad in ["", "/", "[", "a/../b", "**x"] {
            let e = Selection::new(&[bad.to_owned()], &[]).unwrap_err();
            assert!(e.contains("is no pattern"), "{e}");
        }
    }
}
