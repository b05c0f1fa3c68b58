//! Patterns of paths: `/ckpt/**`, `/run-*/out.{dat,log}`.
//!
//! A pattern is matched name by name. In a name, `*` stands for any characters, `?` for one,
//! `[a-z]` for one of the range, `[!a-z]` for one outside it, `{a,b}` for either text, and `\`
//! makes the next character literal. A name `**` stands for any number of names, including none; at
//! the end of a pattern for at least one. So `/ckpt/**` matches everything below `/ckpt`, but not
//! `/ckpt` itself.
//!
//! Matching is incremental: [`Pattern::below`] computes an entry's state from that of its
//! directory. So matching a new file takes one step; the names on its path needn't be matched
//! again.

use std::fmt;

/// Maximum number of names in a pattern: each needs a bit in the state of [`Pattern::below`].
const MAX_NAMES: usize = 62;
/// Maximum number of combinations of the alternatives of all braces in a name.
const MAX_CHOICES: usize = 64;

/// An error in a pattern, and its position (bytes from the start).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    pub at: usize,
    pub message: String,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A pattern of paths from the root of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    names: Vec<Name>,
}

/// A pattern of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// `**`: any number of names.
    Any,
    /// One of these alternatives.
    Either(Vec<Choice>),
}

/// An alternative, as a sequence of pieces.
type Choice = Vec<Piece>;

/// A piece of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Char(char),
    One,
    Star,
    /// A character in one of these ranges; if the bool is true, a character in none of them.
    Class(Vec<(char, char)>, bool),
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Why the text is no pattern, and the position of the error.
    pub fn parse(text: &str) -> Result<Pattern, PatternError> {
        let wrong = |at: usize, message: &str| {
            Err(PatternError {
                at,
                message: message.into(),
            })
        };
        if !text.starts_with('/') {
            return wrong(0, "a path begins with / (the root of the pool)");
        }
        let mut names = Vec::new();
        let mut at = 1;
        for part in text[1..].split('/') {
            match part {
                "" if text.len() == 1 => {}
                "" => return wrong(at, "a name is missing: two / in a row, or one at the end"),
                "." | ".." => return wrong(at, "paths are written without . and .."),
                "**" => names.push(Name::Any),
                _ => names.push(Name::Either(alternatives(part, at)?)),
            }
            at += part.len() + 1;
        }
        if names.last() == Some(&Name::Any) {
            names.push(Name::Either(vec![vec![Piece::Star]]));
        }
        if names.len() > MAX_NAMES {
            return wrong(0, "a pattern has at most 61 names");
        }
        Ok(Pattern {
            text: text.to_owned(),
            names,
        })
    }

    /// The pattern as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The state of the root directory: see [`Pattern::below`].
    pub fn root(&self) -> u64 {
        self.closed(1)
    }

    /// Returns the state of the entry `name` of a directory with `state`. The state has one bit for
    /// each position in the pattern that the path may have reached. 0: neither the entry nor
    /// anything below it matches.
    pub fn below(&self, state: u64, name: &[u8]) -> u64 {
        let mut next = 0;
        for (i, wanted) in self.names.iter().enumerate() {
            if state >> i & 1 == 0 {
                continue;
            }
            match wanted {
                Name::Any => next |= 1 << i,
                Name::Either(choices) if choices.iter().any(|c| fits(c, name)) => {
                    next |= 1 << (i + 1);
                }
                Name::Either(_) => {}
            }
        }
        self.closed(next)
    }

    /// Whether an object with `state` matches.
    pub fn matches(&self, state: u64) -> bool {
        state >> self.names.len() & 1 != 0
    }

    /// Whether something below an object with `state` may match.
    pub fn goes_on(&self, state: u64) -> bool {
        state & ((1 << self.names.len()) - 1) != 0
    }

    /// Whether every entry of a directory with `state` matches, whatever its name.
    pub fn matches_all_in(&self, state: u64) -> bool {
        let is_any = |name: &Name| match name {
            Name::Any => false,
            Name::Either(choices) => choices.iter().any(|c| c[..] == [Piece::Star]),
        };
        let last = self.names.len().wrapping_sub(1);
        self.names.last().is_some_and(is_any) && state >> last & 1 != 0
    }

    /// For each `**` whose position is in `state`, adds the position after it: `**` may stand for
    /// no name.
    fn closed(&self, mut state: u64) -> u64 {
        for (i, wanted) in self.names.iter().enumerate() {
            if *wanted == Name::Any && state >> i & 1 != 0 {
                state |= 1 << (i + 1);
            }
        }
        state
    }
}

/// The alternatives of a name with braces. The name begins at `start` in the pattern.
fn alternatives(name: &str, start: usize) -> Result<Vec<Choice>, PatternError> {
    let mut done: Vec<Choice> = vec![Vec::new()];
    // Inside braces: the alternatives before the braces, and those completed inside so far.
    let mut before: Option<(Vec<Choice>, Vec<Choice>)> = None;
    let mut chars = name.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        let wrong = |message: &str| PatternError {
            at: start + i,
            message: message.into(),
        };
        let piece = match c {
            '*' if chars.peek().is_some_and(|(_, next)| *next == '*') => {
                return Err(wrong("** stands for whole names: between two /"));
            }
            '*' => Piece::Star,
            '?' => Piece::One,
            '\\' => match chars.next() {
                Some((_, c)) => Piece::Char(c),
                None => return Err(wrong("nothing behind \\")),
            },
            '[' => class(&mut chars).ok_or_else(|| {
                wrong("[ without ], or with nothing inside, or a range that runs backwards")
            })?,
            '{' if before.is_some() => return Err(wrong("braces inside braces")),
            '{' => {
                before = Some((done.clone(), Vec::new()));
                continue;
            }
            ',' | '}' if before.is_some() => {
                let (prefix, mut made) = before.take().unwrap_or_default();
                made.append(&mut done);
                if made.len() > MAX_CHOICES {
                    return Err(wrong(
                        "too many alternatives in braces (at most 64 in a name)",
                    ));
                }
                if c == '}' {
                    done = made;
                } else {
                    done = prefix.clone();
                    before = Some((prefix, made));
                }
                continue;
            }
            '}' => return Err(wrong("} without {")),
            c => Piece::Char(c),
        };
        for choice in &mut done {
            choice.push(piece.clone());
        }
    }
    if before.is_some() {
        return Err(PatternError {
            at: start + name.find('{').unwrap_or(0),
            message: "{ without }".into(),
        });
    }
    Ok(done)
}

/// Parses a character class from behind its `[` to its `]`. None for an invalid class.
fn class(chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>) -> Option<Piece> {
    let mut ranges = Vec::new();
    let not = chars.next_if(|(_, c)| matches!(c, '!' | '^')).is_some();
    loop {
        let mut one = || match chars.next()?.1 {
            '\\' => chars.next().map(|(_, c)| (c, true)),
            c => Some((c, false)),
        };
        let (from, escaped) = one()?;
        if from == ']' && !escaped && !ranges.is_empty() {
            return Some(Piece::Class(ranges, not));
        }
        let mut to = from;
        let mut ahead = chars.clone();
        if ahead.next().is_some_and(|(_, c)| c == '-')
            && ahead.next().is_some_and(|(_, c)| c != ']')
        {
            chars.next();
            to = match chars.next()?.1 {
                '\\' => chars.next()?.1,
                c => c,
            };
        }
        if to < from {
            return None;
        }
        ranges.push((from, to));
    }
}

/// Splits a name into its first character and the rest. Bytes that aren't UTF-8 count as one
/// character each.
fn first(name: &[u8]) -> Option<(char, &[u8])> {
    let length = match name.first()? {
        0..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    let whole = name
        .get(..length)
        .and_then(|c| std::str::from_utf8(c).ok())
        .and_then(|c| c.chars().next());
    match whole {
        Some(c) => Some((c, &name[length..])),
        None => Some((char::REPLACEMENT_CHARACTER, &name[1..])),
    }
}

/// Whether a name matches the pieces. Takes at most the number of pieces times the length of the
/// name in steps, since backtracking returns to the last star only.
fn fits(pieces: &[Piece], name: &[u8]) -> bool {
    let (mut pieces, mut name) = (pieces, name);
    let mut star: Option<(&[Piece], &[u8])> = None;
    loop {
        if let Some((Piece::Star, rest)) = pieces.split_first() {
            pieces = rest;
            star = Some((rest, name));
            continue;
        }
        let step = match (pieces.split_first(), first(name)) {
            (None, None) => return true,
            (Some((piece, rest)), Some((c, after))) => {
                let fit = match piece {
                    Piece::Char(wanted) => *wanted == c,
                    Piece::One => true,
                    Piece::Class(ranges, not) => {
                        ranges.iter().any(|(from, to)| (from..=to).contains(&&c)) != *not
                    }
                    Piece::Star => unreachable!("taken above"),
                };
                fit.then_some((rest, after))
            }
            _ => None,
        };
        (pieces, name) = match (step, star) {
            (Some(next), _) => next,
            (None, Some((rest, from))) => match first(from) {
                Some((_, after)) => {
                    star = Some((rest, after));
                    (rest, after)
                }
                None => return false,
            },
            (None, None) => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(pattern: &str, path: &str) -> bool {
        let p = Pattern::parse(pattern).unwrap();
        let names = path.split('/').filter(|n| !n.is_empty());
        let state = names.fold(p.root(), |s, name| p.below(s, name.as_bytes()));
        p.matches(state)
    }

    #[test]
    fn a_pattern_has_bounds() {
        let long = |n: usize| Pattern::parse(&"/a".repeat(n));
        assert!(long(MAX_NAMES - 1).is_ok() && long(MAX_NAMES + 1).is_err());
        let wide = |n: usize| Pattern::parse(&format!("/{{{}}}", vec!["a"; n].join(",")));
        assert!(wide(MAX_CHOICES).is_ok() && wide(MAX_CHOICES + 1).is_err());
    }

    #[test]
    fn what_matches() {
        for (pattern, yes, no) in [
            ("/", &["/"][..], &["/a"][..]),
            ("/a/b", &["/a/b"], &["/a", "/a/b/c", "/b/a"]),
            (
                "/ckpt/**",
                &["/ckpt/1", "/ckpt/1/2/3"],
                &["/ckpt", "/ckpts/1", "/x/ckpt/1"],
            ),
            ("/**/x", &["/x", "/a/x", "/a/b/x"], &["/x/a", "/ax"]),
            (
                "/a/**/b/**/c",
                &["/a/b/c", "/a/1/b/2/3/c", "/a/b/b/c"],
                &["/a/c", "/a/b"],
            ),
            (
                "/*.h5",
                &["/.h5", "/a.h5", "/a.h5.h5"],
                &["/a.h5x", "/d/a.h5"],
            ),
            (
                "/s?ep-[0-9]",
                &["/step-4", "/süep-0"],
                &["/step-10", "/step-x", "/sep-1"],
            ),
            ("/[!a-c]x", &["/dx", "/-x"], &["/ax", "/x"]),
            ("/[]a-]x", &["/]x", "/-x", "/ax"], &["/bx"]),
            (
                "/{a,bc*,}.d",
                &["/a.d", "/bc.d", "/bcx.d", "/.d"],
                &["/b.d", "/ab.d"],
            ),
            ("/{a,b}{c,d}", &["/ac", "/bd"], &["/ab", "/a"]),
            ("/\\*", &["/*"], &["/a"]),
            ("/a*b*c", &["/abc", "/axxbxbxc"], &["/axxc", "/abcd"]),
        ] {
            for path in yes {
                assert!(hit(pattern, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!hit(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn names_that_are_not_text() {
        let p = Pattern::parse("/a?b").unwrap();
        assert!(p.matches(p.below(p.root(), b"a\xffb")));
        assert!(!p.matches(p.below(p.root(), b"a\xff\xffb")));
    }

    #[test]
    fn what_is_no_pattern() {
        for (text, at) in [
            ("a", 0),
            ("", 0),
            ("/a//b", 3),
            ("/a/", 3),
            ("/a/../b", 3),
            ("/a**", 2),
            ("/[a", 1),
            ("/[b-a]", 1),
            ("/{a", 1),
            ("/a}", 2),
            ("/{a,{b}}", 4),
            ("/a\\", 2),
        ] {
            assert_eq!(Pattern::parse(text).map_err(|e| e.at), Err(at), "{text}");
        }
        assert!(Pattern::parse(&"/a".repeat(70)).is_err());
        assert!(Pattern::parse(&format!("/{}", "{a,b}".repeat(7))).is_err());
    }

    #[test]
    fn stars_do_not_take_for_ever() {
        let pattern = format!("/{}b", "*a".repeat(100));
        assert!(!hit(&pattern, &format!("/{}", "a".repeat(255))));
    }
}
