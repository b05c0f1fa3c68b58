//! Rules: controls by path, as a user writes them in a file.
//!
//! ```toml
//! [[rule]]
//! path = "/ckpt/**"
//! mutability = "immutable"
//! on_violation = "report"
//! ```
//! Each control has its value from the last rule that matches the path and declares the control.
//! Rules apply when an object is created; when it is renamed, it keeps its controls.
//!
//! Invalid rules are refused with line and column: malformed TOML, unknown words, paths that match
//! nothing, two rules for the same path that contradict each other.

use crate::declared::{Declared, NAMES, no_control};
use crate::glob::Pattern;
use serde::{Deserialize, Serialize};
use std::fmt;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A noncharacter that no rule contains literally: rules that match this name match any name.
const UNGUESSED: &[u8] = "\u{fdd0}".as_bytes();

/// Maximum number of rules of a pool.
pub const MAX_RULES: usize = 1000;

/// One rule: declarations for all objects whose paths match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Rule {
    pub pattern: Pattern,
    pub controls: Declared,
    /// Line of the file in which the rule begins.
    pub line: usize,
}

/// A rule's form in a pool's configuration.
#[derive(Clone, Serialize, Deserialize)]
struct Written {
    path: String,
    controls: String,
    line: usize,
}

impl From<Rule> for Written {
    fn from(rule: Rule) -> Written {
        Written {
            path: rule.pattern.text().to_owned(),
            controls: rule.controls.to_string(),
            line: rule.line,
        }
    }
}

impl TryFrom<Written> for Rule {
    type Error = String;

    fn try_from(w: Written) -> Result<Rule, String> {
        Ok(Rule {
            pattern: Pattern::parse(&w.path).map_err(|e| e.to_string())?,
            controls: w.controls.parse().map_err(|e| format!("{e}"))?,
            line: w.line,
        })
    }
}

/// An error in a file of rules, and its line and column (both from 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub line: usize,
    pub column: usize,
    pub message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleError {
            line,
            column,
            message,
        } = self;
        write!(f, "line {line}, column {column}: {message}")
    }
}

impl std::error::Error for RuleError {}

/// All rules of a pool, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// The state of a path: for each rule that may match the path or a path below it, the rule's index
/// and its pattern's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct At(Vec<(u32, u64)>);

/// Origin of a control's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The default: nothing was declared.
    Default,
    /// The rule with this index.
    Rule(usize),
}

/// A control, its value as it is written, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub control: &'static str,
    pub value: String,
    pub origin: Origin,
}

impl Rules {
    /// Parses a file of rules for a pool that programs see under `mount`.
    ///
    /// # Errors
    /// The reason, with line and column.
    pub fn parse(text: &str, mount: &str) -> Result<Rules, RuleError> {
        let at = |offset: usize, message: String| {
            let before = &text[..text.floor_char_boundary(offset)];
            let start = before.rfind('\n').map_or(0, |n| n + 1);
            RuleError {
                line: before.matches('\n').count() + 1,
                column: before[start..].chars().count() + 1,
                message,
            }
        };
        let file = DeTable::parse(text)
            .map_err(|e| at(e.span().map_or(0, |s| s.start), e.message().to_owned()))?;
        let mut rules = Rules::default();
        for (key, value) in file.get_ref() {
            if key.get_ref() != "rule" {
                let message = format!(
                    "a file of rules has [[rule]] and nothing else, not {}",
                    key.get_ref()
                );
                return Err(at(key.span().start, message));
            }
            let no_table = || at(key.span().start, "rules are written as [[rule]]".into());
            let all = value.get_ref().as_array().ok_or_else(no_table)?;
            for one in all.iter() {
                let table = one.get_ref().as_table().ok_or_else(no_table)?;
                let rule = rules.read(table, one.span().start, mount, &at)?;
                if rules.rules.len() == MAX_RULES {
                    let message = format!("a pool has at most {MAX_RULES} rules");
                    return Err(at(one.span().start, message));
                }
                rules.rules.push(rule);
            }
        }
        Ok(rules)
    }

    /// Reads the rule in a table that begins at byte `start` of the text.
    fn read(
        &self,
        table: &DeTable<'_>,
        start: usize,
        mount: &str,
        at: &dyn Fn(usize, String) -> RuleError,
    ) -> Result<Rule, RuleError> {
        let text = |name: &str, value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(s) => Ok(s.to_string()),
            _ => Err(at(
                value.span().start,
                format!("{name} is a text in quotes"),
            )),
        };
        let Some(path) = table.get("path") else {
            return Err(at(start, "a rule needs a path = \"...\"".into()));
        };
        let written = text("path", path)?;
        let inside = match written.strip_prefix(mount.trim_end_matches('/')) {
            Some("") => "/",
            Some(rest) if rest.starts_with('/') => rest,
            _ => &written,
        };
        let pattern = Pattern::parse(inside).map_err(|e| {
            // The position behind the quotation mark and the removed mount prefix. Exact unless the
            // text has escapes.
            let offset = 1 + written.len() - inside.len() + e.at;
            at(path.span().start + offset, e.message)
        })?;
        let line = at(start, String::new()).line;
        let mut rule = Rule {
            pattern,
            controls: Declared::NOTHING,
            line,
        };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if name == "path" {
                continue;
            }
            if !NAMES.contains(&name) {
                let message = no_control(name);
                return Err(at(key.span().start, message));
            }
            let written = text(name, value)?;
            let place = value.span().start;
            rule.controls
                .declare(name, &written)
                .map_err(|e| at(place, e))?;
            if let Some(other) = self.contradicted(&rule, name) {
                let message = format!(
                    "{name} for {} is {} already, by the rule in line {}; a later rule for the same path would take that back",
                    rule.pattern.text(),
                    value_of(&other.controls, name).unwrap_or_default(),
                    other.line
                );
                return Err(at(key.span().start, message));
            }
        }
        if rule.controls.is_nothing() {
            return Err(at(
                start,
                format!(
                    "this rule says nothing; it needs one of {}",
                    NAMES.join(", ")
                ),
            ));
        }
        Ok(rule)
    }

    /// Returns an earlier rule for the same path that declares another value for control `name`.
    fn contradicted(&self, rule: &Rule, name: &str) -> Option<&Rule> {
        let wanted = value_of(&rule.controls, name);
        let same = self.rules.iter().filter(|r| r.pattern == rule.pattern);
        same.into_iter()
            .find(|r| value_of(&r.controls, name).is_some_and(|v| Some(v) != wanted))
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// All rules, in the order of the file.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// The state of the pool's root directory.
    pub fn root(&self) -> At {
        let all = self.rules.iter().enumerate();
        At(all.map(|(i, r)| (i as u32, r.pattern.root())).collect())
    }

    /// The state of the entry `name` of a directory with state `at`.
    pub fn below(&self, at: &At, name: &[u8]) -> At {
        let next = at.0.iter().filter_map(|&(i, state)| {
            let state = self.rules[i as usize].pattern.below(state, name);
            (state != 0).then_some((i, state))
        });
        At(next.collect())
    }

    /// The state of a path from the root of the pool, with or without a leading `/`.
    pub fn at(&self, path: &[u8]) -> At {
        let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty());
        names.fold(self.root(), |at, name| self.below(&at, name))
    }

    /// The declarations for an object with state `at`.
    pub fn controls(&self, at: &At) -> Declared {
        self.matching(at).fold(Declared::NOTHING, |declared, i| {
            declared.or(self.rules[i].controls)
        })
    }

    /// The declarations for the entry `name` of a directory with state `at`.
    pub fn declared_for(&self, at: &At, name: &[u8]) -> Declared {
        self.controls(&self.below(at, name))
    }

    /// The declarations for any entry of a directory with state `at`, whatever its name.
    pub fn declared_within(&self, at: &At) -> Declared {
        self.declared_for(at, UNGUESSED)
    }

    /// The rules that match an object with state `at`, the last first.
    fn matching(&self, at: &At) -> impl Iterator<Item = usize> {
        at.0.iter()
            .rev()
            .filter(|(i, state)| self.rules[*i as usize].pattern.matches(*state))
            .map(|(i, _)| *i as usize)
    }

    /// Returns for each control the value that an object at this path gets, and the value's origin.
    pub fn explain(&self, path: &[u8]) -> Vec<Explanation> {
        self.explain_at(&self.at(path))
    }

    /// As [`Rules::explain`], for any entry of the directory with this path, whatever its name.
    pub fn explain_within(&self, path: &[u8]) -> Vec<Explanation> {
        self.explain_at(&self.below(&self.at(path), UNGUESSED))
    }

    fn explain_at(&self, at: &At) -> Vec<Explanation> {
        let strict = Declared::from(crate::Controls::default());
        let matching: Vec<usize> = self.matching(at).collect();
        let each = strict.values().into_iter().map(|(control, strict)| {
            let found = matching
                .iter()
                .find_map(|i| Some((*i, value_of(&self.rules[*i].controls, control)?)));
            match found {
                Some((i, value)) => Explanation {
                    control,
                    value,
                    origin: Origin::Rule(i),
                },
                None => Explanation {
                    control,
                    value: strict.unwrap_or_default(),
                    origin: Origin::Default,
                },
            }
        });
        each.collect()
    }
}

fn value_of(declared: &Declared, name: &str) -> Option<String> {
    declared.values().into_iter().find(|(n, _)| *n == name)?.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_a_bounded_number_of_rules() {
        let rule = "[[rule]]\npath = \"/a/**\"\nmutability = \"immutable\"\n";
        let most = Rules::parse(&rule.repeat(MAX_RULES), "/fb").unwrap();
        assert_eq!(most.rules.len(), MAX_RULES);
        let more = Rules::parse(&rule.repeat(MAX_RULES + 1), "/fb").unwrap_err();
        assert!(more.to_string().contains("at most 1000 rules"), "{more}");
    }

    const EXAMPLE: &str = r#"
# Checkpoints never change.
[[rule]]
path = "/ckpt/**"
mutability = "immutable"
parallelism = "exclusive"
on_violation = "refuse"

[[rule]]
path = "/fb/ckpt/*.log"
mutability = "append"
"#;

    fn rules(text: &str) -> Result<Rules, String> {
        Rules::parse(text, "/fb").map_err(|e| e.to_string())
    }

    #[test]
    fn the_last_rule_that_declares_a_control_counts() {
        let r = rules(EXAMPLE).unwrap();
        let of = |path: &str| r.controls(&r.at(path.as_bytes())).to_string();
        let ckpt = "parallelism=exclusive,mutability=immutable,on_violation=refuse";
        assert_eq!(of("/ckpt/a/b.log"), ckpt);
        assert_eq!(of("ckpt/b.log"), ckpt.replace("immutable", "append"));
        assert_eq!(of("/ckpt"), "");
        assert_eq!(of("/other"), "");
        let directory = r.at(b"/ckpt");
        assert_eq!(r.declared_for(&directory, b"x").to_string(), ckpt);
    }

    #[test]
    fn declarations_for_all_entries_of_a_directory() {
        let text = "[[rule]]\npath = '/a/**'\nparallelism = 'exclusive'\n[[rule]]\npath = '/b/*.x'\nmutability = 'append'";
        let r = rules(text).unwrap();
        let within = |path: &str| r.declared_within(&r.at(path.as_bytes())).to_string();
        assert_eq!(within("/a"), "parallelism=exclusive");
        assert_eq!(within("/a/b"), "parallelism=exclusive");
        assert_eq!(within("/b"), "");
        assert_eq!(within("/"), "");
    }

    #[test]
    fn it_is_explained() {
        let r = rules(EXAMPLE).unwrap();
        let explained = r.explain(b"/ckpt/a.log");
        let of = |control: &str| explained.iter().find(|s| s.control == control).unwrap();
        assert_eq!(of("mutability").origin, Origin::Rule(1));
        assert_eq!(of("mutability").value, "append");
        assert_eq!(of("parallelism").origin, Origin::Rule(0));
        assert_eq!(of("consistency").origin, Origin::Default);
        assert_eq!(of("consistency").value, "sequential");
        assert_eq!(r.all()[1].line, 9);
    }

    #[test]
    fn what_cannot_hold_is_refused_with_its_place() {
        for (text, place, says) in [
            ("[[rule]\n", "line 1, column 8", "]"),
            ("\nx = 1\n", "line 2, column 1", "nothing else"),
            ("rule = 3\n", "line 1, column 1", "[[rule]]"),
            (
                "[[rule]]\nmutability=\"append\"",
                "line 1, column 1",
                "needs a path",
            ),
            (
                "[[rule]]\npath = \"/a\"\n",
                "line 1, column 1",
                "says nothing",
            ),
            ("[[rule]]\npath = 3\n", "line 2, column 8", "text in quotes"),
            (
                "[[rule]]\npath = \"/a//b\"\nfailure=\"stop\"",
                "line 2, column 12",
                "name is missing",
            ),
            (
                "[[rule]]\npath = \"/fb/a//b\"\nfailure=\"stop\"",
                "line 2, column 15",
                "name is missing",
            ),
            (
                "[[rule]]\npath = \"/ä\"\nmut = \"append\"",
                "line 3, column 1",
                "no control \"mut\"",
            ),
            (
                "[[rule]]\npath = \"/a\"\n  mutability = \"apend\"",
                "line 3, column 16",
                "isn't one of",
            ),
            (
                "[[rule]]\npath = \"/a\"\nmutability = \"append\"\nmutability = \"append\"",
                "line 4, column 1",
                "duplicate",
            ),
            (
                "[[rule]]\npath = \"/a\"\nmutability = \"append\"\n[[rule]]\npath = \"/a\"\nmutability = \"immutable\"",
                "line 6, column 1",
                "append already, by the rule in line 1",
            ),
        ] {
            let e = rules(text).unwrap_err();
            assert!(e.starts_with(place), "{text:?}: {e}");
            assert!(e.contains(says), "{text:?}: {e}");
        }
    }

    #[test]
    fn a_configuration_keeps_them() {
        // Rules survive any format of serde; this test uses the text form of [`Written`].
        let r = rules(EXAMPLE).unwrap();
        for rule in r.all() {
            let written = Written::from(rule.clone());
            assert_eq!(Rule::try_from(written).as_ref(), Ok(rule));
        }
    }

    #[test]
    fn arbitrary_text_is_an_error_and_no_panic() {
        forebay_fuzz::run("files of rules", |random| {
            let mut text = EXAMPLE.as_bytes().to_vec();
            random.mutate(&mut text, b"/**/[a-z]{,}\"'''=");
            if let Ok(rules) = Rules::parse(&String::from_utf8_lossy(&text), "/fb") {
                let path = random.bytes(40);
                let _ = rules.controls(&rules.at(&path));
            }
        });
    }
}
