//! Which top-level modules of a crate import which others, read from its source.
//!
//! The source is cut into tokens (no comments, no strings), code that is built for tests only is
//! dropped, and every path that begins with `crate::` or `super::` is followed to the top-level
//! module that it names. A name that the crate's root re-exports stands for the module that it
//! comes from. Items that the root itself defines are a separate node, [`ROOT`]. Not seen: paths
//! that macros put together, and methods of a type that another module adds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The node of what `lib.rs` or `main.rs` defines.
pub const ROOT: &str = "(root)";

/// Module to the modules it imports, each with a place that does so.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Names and single signs; `::` is one sign. Numbers count as names.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
    while at < bytes.len() {
        let from = at;
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = text[at..].find('\n').map_or(bytes.len(), |n| at + n);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                at = text[at..].find("*/").map_or(bytes.len(), |n| at + n + 2);
            }
            b'"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'\'' => {
                // A character, or a lifetime.
                let rest = &text[at + 1..];
                let escaped = rest.starts_with('\\');
                let first = rest.chars().next().map_or(0, char::len_utf8);
                let end = match escaped {
                    true => rest[2..].find('\'').map(|n| n + 3),
                    false => rest[first..].starts_with('\'').then_some(first + 1),
                };
                at += 1 + end.unwrap_or(0);
            }
            b if is_name(b) => {
                while at < bytes.len() && is_name(bytes[at]) {
                    at += 1;
                }
                let hashes = bytes[at..].iter().take_while(|&&b| b == b'#').count();
                let opens = bytes.get(at + hashes) == Some(&b'"');
                match &text[from..at] {
                    "r" | "br" | "cr" if opens => {
                        let end = format!("\"{}", "#".repeat(hashes));
                        let inner = at + hashes + 1;
                        let len = text[inner..].find(&end).expect("the string ends");
                        at = inner + len + end.len();
                    }
                    name => found.push(Token { text: name, line }),
                }
            }
            b':' if bytes.get(at + 1) == Some(&b':') => {
                at += 2;
                found.push(Token { text: "::", line });
            }
            b if b.is_ascii_whitespace() => at += 1,
            _ => {
                at += 1;
                let text = &text[from..at];
                found.push(Token { text, line });
            }
        }
        let end = at.min(bytes.len());
        line += bytes[from..end].iter().filter(|&&b| b == b'\n').count();
    }
    found
}

/// Index of the bracket that closes the one at `at`.
fn closing(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    tokens.len() - 1
}

/// Drops what is built for tests only. Names of modules that are, and lie in files of their own, go
/// to `in_files`.
fn drop_tests<'a>(all: Vec<Token<'a>>, in_files: &mut BTreeSet<&'a str>) -> Vec<Token<'a>> {
    let mut dropped = vec![false; all.len()];
    let text = |i: usize| all.get(i).map_or("", |t| t.text);
    let mut at = 0;
    while at < all.len() {
        if text(at) != "#" || text(at + 1) != "[" || text(at + 2) != "cfg" {
            at += 1;
            continue;
        }
        let end = closing(&all, at + 1);
        let said: Vec<&str> = all[at..end].iter().map(|t| t.text).collect();
        let tests = match said.get(4) {
            Some(&"test") => true,
            Some(&"all") => {
                let is_test = |i: &usize| said[*i] == "test" && said[i - 2] != "not";
                (6..said.len()).any(|i| is_test(&i))
            }
            _ => false,
        };
        if !tests {
            at = end + 1;
            continue;
        }
        let mut last = end + 1;
        while text(last) == "#" {
            last = closing(&all, last + 1) + 1;
        }
        while text(last) == "pub" {
            last += 1;
            if text(last) == "(" {
                last = closing(&all, last) + 1;
            }
        }
        if text(last) == "mod" && text(last + 2) == ";" {
            in_files.insert(text(last + 1));
        }
        let is_use = text(last) == "use";
        // The item ends with its block, or a semicolon; a field or an arm, with a comma.
        loop {
            match text(last) {
                "" | ";" | "," => break,
                "{" => {
                    last = closing(&all, last);
                    if !is_use {
                        break;
                    }
                }
                "(" | "[" => last = closing(&all, last),
                _ => {}
            }
            last += 1;
        }
        for drop in dropped.iter_mut().take(last + 1).skip(at) {
            *drop = true;
        }
        at = last + 1;
    }
    let kept = all.into_iter().zip(dropped).filter(|(_, dropped)| !dropped);
    kept.map(|(token, _)| token).collect()
}

/// The first names of all paths in the use tree that begins at `at`: `a::b` is a, `{a, b::{c}}` are
/// a and b.
fn heads<'a>(tokens: &[Token<'a>], at: usize) -> Vec<&'a str> {
    match tokens.get(at).map_or("", |t| t.text) {
        "{" => {
            let end = closing(tokens, at);
            let mut found = vec![];
            let (mut i, mut begins) = (at + 1, true);
            while i < end {
                match tokens[i].text {
                    "," => begins = true,
                    "{" => i = closing(tokens, i),
                    name if begins => {
                        found.push(name);
                        begins = false;
                    }
                    _ => {}
                }
                i += 1;
            }
            found
        }
        name => vec![name],
    }
}

/// The names that a use tree brings in, each with the first part of its path.
fn brought<'a>(tokens: &[Token<'a>], head: Option<&'a str>, found: &mut Vec<(&'a str, &'a str)>) {
    let mut at = 0;
    while at < tokens.len() {
        // One path, up to the comma.
        let mut end = at;
        while end < tokens.len() && tokens[end].text != "," {
            end = match tokens[end].text {
                "{" => closing(tokens, end) + 1,
                _ => end + 1,
            };
        }
        let path = &tokens[at..end];
        at = end + 1;
        let Some(first) = path
            .iter()
            .find(|t| !matches!(t.text, "::" | "crate" | "self"))
        else {
            continue;
        };
        match path.iter().position(|t| t.text == "{") {
            Some(open) => {
                let inner = &path[open + 1..path.len() - 1];
                let head = head.or((first.text != "{").then_some(first.text));
                brought(inner, head, found);
            }
            None => {
                let last = path[path.len() - 1].text;
                found.push((last, head.unwrap_or(first.text)));
            }
        }
    }
}

struct Root<'a> {
    modules: BTreeSet<&'a str>,
    /// Names that stand for something else: where they come from.
    names: BTreeMap<&'a str, &'a str>,
}

impl Root<'_> {
    /// The node that `crate::name` is in; None if it is of another crate.
    fn node(&self, name: &str) -> Option<String> {
        if self.modules.contains(name) {
            return Some(name.to_owned());
        }
        match self.names.get(name) {
            Some(&from) if self.modules.contains(from) => Some(from.to_owned()),
            Some(_) => None,
            None => Some(ROOT.to_owned()),
        }
    }
}

/// All source files below `dir` with the names of their modules, from the top.
fn files(dir: &Path, above: &[String], found: &mut Vec<(PathBuf, Vec<String>)>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = above.to_vec();
        if path.is_dir() {
            module.push(stem);
            files(&path, &module, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            if !["mod", "lib", "main"].contains(&stem.as_str())
                || !above.is_empty() && stem != "mod"
            {
                module.push(stem);
            }
            found.push((path, module));
        }
    }
}

/// The imports among the top-level modules of the crate whose source lies in `src`.
pub fn of_crate(src: &Path) -> Imports {
    let mut all = Vec::new();
    files(src, &[], &mut all);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let texts: Vec<String> = all.iter().map(|(path, _)| read(path)).collect();
    let mut parsed = Vec::new();
    // Modules for tests only, with the names of those above them.
    let mut for_tests: BTreeSet<Vec<String>> = BTreeSet::new();
    for ((_, module), text) in all.iter().zip(&texts) {
        let mut in_files = BTreeSet::new();
        parsed.push(drop_tests(tokens(text), &mut in_files));
        for name in in_files {
            let mut of_it = module.clone();
            of_it.push(name.to_owned());
            for_tests.insert(of_it);
        }
    }
    let is_for_tests =
        |module: &[String]| (1..=module.len()).any(|n| for_tests.contains(&module[..n]));
    let mut root = Root {
        modules: BTreeSet::new(),
        names: BTreeMap::new(),
    };
    for ((_, module), tokens) in all.iter().zip(&parsed).filter(|((_, m), _)| m.is_empty()) {
        assert!(module.is_empty());
        for (i, token) in tokens.iter().enumerate() {
            if token.text == "mod"
                && tokens
                    .get(i + 2)
                    .is_some_and(|t| t.text == ";" || t.text == "{")
            {
                root.modules.insert(tokens[i + 1].text);
            }
            if token.text == "use" {
                let end = (i..tokens.len()).find(|&e| tokens[e].text == ";").unwrap();
                let mut names = Vec::new();
                brought(&tokens[i + 1..end], None, &mut names);
                root.names.extend(names);
            }
        }
    }
    let mut imports = Imports::new();
    for ((path, module), tokens) in all.iter().zip(&parsed) {
        if is_for_tests(module) {
            continue;
        }
        let own = module.first().map_or(ROOT, |m| m);
        let file = path.strip_prefix(src).unwrap().display();
        let to = imports.entry(own.to_owned()).or_default();
        let mut note = |name: &str, line: usize| {
            if let Some(node) = root.node(name).filter(|n| n != own) {
                to.entry(node).or_insert_with(|| format!("{file}:{line}"));
            }
        };
        // How many modules are open inside the file, and where they are closed.
        let mut open: Vec<usize> = Vec::new();
        let mut i = 0;
        while i < tokens.len() {
            open.retain(|&end| end > i);
            let text = |i: usize| tokens.get(i).map_or("", |t| t.text);
            if text(i) == "mod" && text(i + 2) == "{" {
                open.push(closing(tokens, i + 2));
            }
            let before = if i > 0 { text(i - 1) } else { "" };
            let begins = before != "::" && before != ".";
            if begins && text(i) == "crate" && text(i + 1) == "::" {
                let names = heads(tokens, i + 2);
                names.iter().for_each(|name| note(name, tokens[i].line));
            } else if begins && text(i) == "super" && text(i + 1) == "::" {
                let mut depth = module.len() + open.len();
                while text(i) == "super" && text(i + 1) == "::" {
                    depth -= 1;
                    i += 2;
                }
                if depth == 0 {
                    let names = heads(tokens, i);
                    names.iter().for_each(|name| note(name, tokens[i].line));
                }
                continue;
            } else if begins && module.is_empty() && text(i) == "use" && is_re_export(tokens, i) {
                // Its path is no import of the root's own.
                while text(i) != ";" {
                    i += 1;
                }
            } else if begins
                && module.is_empty()
                && text(i + 1) == "::"
                && root.modules.contains(text(i))
            {
                note(text(i), tokens[i].line);
            }
            i += 1;
        }
    }
    imports
}

/// Whether the `use` at `at` has a visibility.
fn is_re_export(tokens: &[Token<'_>], at: usize) -> bool {
    at > 0 && ["pub", ")"].contains(&tokens[at - 1].text)
}

/// The circles: sets of modules, more than one, each of which leads to all others.
pub fn cycles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reached = |from: &str| {
        let mut found = BTreeSet::new();
        let mut left = vec![from.to_owned()];
        while let Some(next) = left.pop() {
            for to in imports.get(&next).into_iter().flat_map(|to| to.keys()) {
                if found.insert(to.clone()) {
                    left.push(to.clone());
                }
            }
        }
        found
    };
    let all: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|m| (m, reached(m))).collect();
    let mut found = BTreeSet::new();
    for (&module, to) in &all {
        if to.contains(module) {
            let back = to
                .iter()
                .filter(|t| all.get(t).is_some_and(|r| r.contains(module)));
            found.insert(back.cloned().collect::<BTreeSet<String>>());
        }
    }
    found.into_iter().collect()
}

/// Says which imports each circle is made of.
pub fn describe(imports: &Imports, cycles: &[BTreeSet<String>]) -> String {
    let mut text = String::new();
    for cycle in cycles {
        text += &format!("  a circle of {}:\n", cycle.len());
        for module in cycle {
            let within = imports[module].iter().filter(|(to, _)| cycle.contains(*to));
            let places: Vec<String> = within.map(|(to, at)| format!("{to} ({at})")).collect();
            text += &format!("    {module} imports {}\n", places.join(", "));
        }
    }
    text
}
