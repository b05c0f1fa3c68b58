//! Groups of files by path: one for each directory, and one for each set of names that differ only
//! in numbers. A group has the pattern that a rule for it would have, and facts about all files
//! that match.
//!
//! A verdict for a pattern counts every file of the run that matches it, not only the files from
//! which the pattern was made.

use crate::run::{Group, MAX_GROUPS};
use forebay_controls::Pattern;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of comparisons of a path with a pattern. This maximum limits the number of tried
/// patterns.
const MAX_COMPARISONS: usize = 10_000_000;
/// Maximum number of tried patterns.
const MAX_PATTERNS: usize = 400;

/// A file with a known path.
pub struct Member {
    /// The file's path in the pool.
    pub path: String,
    /// Whether the end of the file's name may be missing.
    pub cut: bool,
    /// Nodes that used the file.
    pub nodes: BTreeSet<u32>,
    /// The group that contains only this file.
    pub group: Group,
}

/// Returns the pattern that matches only this name.
fn literal(name: &str) -> String {
    plain(&escaped(name))
}

fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            // U+FFFD has replaced bytes that aren't text.
            '\u{fffd}' => pattern.push('*'),
            '*' | '?' | '[' | ']' | '{' | '}' | '\\' | ',' | '!' => {
                pattern.push('\\');
                pattern.push(c);
            }
            c => pattern.push(c),
        }
    }
    pattern
}

/// Returns the name as a pattern in which digits are `*`, except in a short suffix (`.h5`).
fn general(name: &str) -> String {
    let suffix = name.rfind('.').filter(|&dot| {
        let rest = &name[dot + 1..];
        dot > 0 && rest.len() <= 4 && rest.starts_with(|c: char| c.is_ascii_alphabetic())
    });
    let (stem, suffix) = name.split_at(suffix.unwrap_or(name.len()));
    let mut pattern = String::new();
    let mut digits = false;
    for piece in stem.chars() {
        let is_digit = piece.is_ascii_digit();
        if !is_digit {
            pattern.push_str(&literal(piece.encode_utf8(&mut [0; 4])));
        } else if !digits {
            pattern.push('*');
        }
        digits = is_digit;
    }
    plain(&(pattern + &literal(suffix)))
}

/// Removes stars that follow a star, since `**` stands for whole names.
fn plain(pattern: &str) -> String {
    let (mut plain, mut star, mut escaped) = (String::new(), false, false);
    for c in pattern.chars() {
        let is_star = c == '*' && !escaped;
        if !(is_star && star) {
            plain.push(c);
        }
        star = is_star;
        escaped = c == '\\' && !escaped;
    }
    plain
}

/// A candidate for a group's pattern, component by component. `general`: the components as
/// patterns. `common`: the component that all paths so far have; None if they differ.
struct Candidate {
    general: Vec<String>,
    common: Vec<Option<String>>,
    weight: u64,
}

impl Candidate {
    fn pattern(&self, directory: bool) -> String {
        let names = self.general.iter().zip(&self.common);
        let names = names.map(|(general, common)| common.as_ref().unwrap_or(general).clone());
        let path = joined(names);
        if directory { path + "/**" } else { path }
    }
}

/// Candidates by their general components, and by whether they stand for everything below a
/// directory.
struct Candidates(BTreeMap<(Vec<String>, bool), Candidate>);

impl Candidates {
    fn add(&mut self, names: &[Written], directory: bool, weight: u64) {
        let general: Vec<String> = names.iter().map(|n| n.general.clone()).collect();
        let key = (general.clone(), directory);
        let candidate = self.0.entry(key).or_insert_with(|| Candidate {
            general,
            common: names.iter().map(|n| Some(n.literal.clone())).collect(),
            weight: 0,
        });
        for (common, name) in candidate.common.iter_mut().zip(names) {
            if common.as_ref().is_some_and(|c| *c != name.literal) {
                *common = None;
            }
        }
        candidate.weight = candidate.weight.saturating_add(weight);
    }
}

/// A name as a literal pattern and as a general one.
struct Written {
    literal: String,
    general: String,
}

fn names(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|name| !name.is_empty())
}

fn joined(names: impl Iterator<Item = String>) -> String {
    names.fold(String::new(), |path, name| path + "/" + &name)
}

/// Whether a pattern matches a member's path. `known` caches the pattern's state for each
/// directory.
fn matches(pattern: &Pattern, member: &Member, known: &mut HashMap<String, u64>) -> bool {
    let (dir, name) = member.path.rsplit_once('/').unwrap_or(("", &member.path));
    let state = match known.get(dir) {
        Some(&state) => state,
        None => {
            let state = names(dir).fold(pattern.root(), |state, name| match state {
                0 => 0,
                state => pattern.below(state, name.as_bytes()),
            });
            known.insert(dir.to_owned(), state);
            state
        }
    };
    // If the end of the name is missing, any name in the directory could be the file's.
    state != 0 && (member.cut || pattern.matches(pattern.below(state, name.as_bytes())))
}

/// Returns the groups of these files, sorted by time, longest first.
pub fn of(members: &[Member]) -> Vec<Group> {
    let mut candidates = Candidates(BTreeMap::new());
    for member in members {
        let group = &member.group;
        let weight = group.reads.nanoseconds + group.writes.nanoseconds + 1000 * group.opens + 1;
        let mut all: Vec<Written> = names(&member.path)
            .map(|name| Written {
                literal: literal(name),
                general: general(name),
            })
            .collect();
        if member.cut
            && let Some(last) = all.last_mut()
        {
            last.literal = plain(&format!("{}*", last.literal));
            last.general = plain(&format!("{}*", last.general));
        }
        for depth in 1..all.len() {
            candidates.add(&all[..depth], true, weight);
        }
        candidates.add(&all, false, weight);
    }
    let mut candidates: Vec<((Vec<String>, bool), Candidate)> = candidates.0.into_iter().collect();
    candidates.sort_by_key(|(_, c)| std::cmp::Reverse(c.weight));
    let most = (MAX_COMPARISONS / members.len().max(1)).clamp(20, MAX_PATTERNS);
    candidates.truncate(most);
    let mut groups = Vec::new();
    let mut seen = BTreeSet::new();
    for ((_, directory), candidate) in candidates {
        let text = candidate.pattern(directory);
        // The pattern isn't valid, for example because the path has too many names.
        let Ok(pattern) = Pattern::parse(&text) else {
            continue;
        };
        if seen.insert(text.clone()) {
            groups.push(group(text, directory, &pattern, members));
        }
    }
    groups.retain(|g| g.files > 0);
    groups.sort_by_key(|g| std::cmp::Reverse(weight(g)));
    groups.truncate(MAX_GROUPS);
    groups
}

fn weight(group: &Group) -> u64 {
    group.reads.nanoseconds + group.writes.nanoseconds + 1000 * group.opens
}

/// Adds the facts about the files of another group.
pub fn add(to: &mut Group, other: &Group) {
    to.files += other.files;
    to.created += other.created;
    to.opens += other.opens;
    to.reads.add(&other.reads);
    to.writes.add(&other.writes);
    to.largest = to.largest.max(other.largest);
    to.nodes_of_a_file = to.nodes_of_a_file.max(other.nodes_of_a_file);
    to.processes_of_a_file = to.processes_of_a_file.max(other.processes_of_a_file);
    to.remote_reads += other.remote_reads;
    to.remote_writes += other.remote_writes;
    to.remote_names += other.remote_names;
    to.read_again += other.read_again;
    to.fetched += other.fetched;
    for (control, verdict) in &other.verdicts {
        to.verdicts.entry(control.clone()).or_default().add(verdict);
    }
}

fn group(text: String, directory: bool, pattern: &Pattern, members: &[Member]) -> Group {
    let mut group = Group {
        pattern: text,
        directory,
        ..Group::default()
    };
    let (mut known, mut nodes) = (HashMap::new(), BTreeSet::<u32>::new());
    let mut directories: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for member in members {
        if !matches(pattern, member, &mut known) {
            continue;
        }
        add(&mut group, &member.group);
        if group.example.is_empty() {
            group.example.clone_from(&member.path);
        }
        nodes.extend(&member.nodes);
        let dir = member.path.rsplit_once('/').map_or("", |(dir, _)| dir);
        directories.entry(dir).or_default().extend(&member.nodes);
    }
    group.nodes = nodes.len() as u64;
    group.shared_directories = directories.values().filter(|n| n.len() > 1).count() as u64;
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(path: &str) -> Member {
        Member {
            path: path.into(),
            cut: false,
            nodes: [1].into(),
            group: Group {
                files: 1,
                ..Group::default()
            },
        }
    }

    #[test]
    fn numbers_become_stars_and_odd_names_stay_literal() {
        assert_eq!(general("step-0012.h5"), "step-*.h5");
        assert_eq!(general("state.0"), "state.*");
        assert_eq!(general("a*b{c}[1]"), "a\\*b\\{c\\}\\[*\\]");
        assert_eq!(general("a.2024.csv"), "a.*.csv");
        let members: Vec<Member> = ["/out/a*.1", "/out/a*.2", "/out/ab.1", "/x/only.7"]
            .map(member)
            .into();
        let groups = of(&members);
        let files = |pattern: &str| {
            let found = groups.iter().find(|g| g.pattern == pattern);
            found
                .unwrap_or_else(|| panic!("{pattern} of {groups:?}"))
                .files
        };
        assert_eq!(files("/out/**"), 3);
        assert_eq!(files("/out/a\\*.*"), 2);
        assert_eq!(files("/x/only.7"), 1);
    }

    #[test]
    fn hostile_names_make_patterns_that_match_them() {
        for name in [
            "*",
            "**",
            "?",
            "[a",
            "{a,b}",
            "a\\",
            "]",
            "}",
            "!",
            "ä\u{fffd}",
            "a b",
        ] {
            let members = [member(&format!("/d/{name}"))];
            let groups = of(&members);
            let of_name = groups.iter().find(|g| !g.directory);
            let of_name = of_name.unwrap_or_else(|| panic!("{name}"));
            assert_eq!(of_name.files, 1, "{name}: {}", of_name.pattern);
        }
    }
}
