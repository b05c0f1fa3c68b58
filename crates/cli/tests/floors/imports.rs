//! Reads from the source which modules of a folder import which others of that folder.
//!
//! The source is split into tokens (without comments and strings), and code that is built only for
//! tests is dropped. Each path that begins with `crate::` or `super::` is resolved to the module of
//! the folder that it names. A name that the folder's own module re-exports counts as the module
//! that it comes from. Items that the folder's own module defines are a separate node, [`ROOT`].
//! Not found: paths that macros put together, and methods of a type that another module adds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The node of the folder's own module: `lib.rs` for a crate.
pub const ROOT: &str = "(root)";

/// Maps each module to the modules that it imports, each with one line that does so.
pub type Imports = BTreeMap<String, BTreeMap<String, String>>;

struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Splits a text into names and signs; `::` is one sign, and numbers count as names.
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
                // A character literal, or a lifetime.
                let rest = &text[at + 1..];
                let escaped = rest.starts_with('\\');
                let first = rest.chars().next().map_or(0, char::len_utf8);
                let end = if escaped {
                    rest[2..].find('\'').map(|n| n + 3)
                } else {
                    rest[first..].starts_with('\'').then_some(first + 1)
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

/// Returns the index of the bracket that closes the one at `at`.
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

/// Drops code that is built only for tests. Adds the names of test modules in files of their own to
/// `in_files`.
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
        // An item ends with its block or a semicolon; a field or an arm ends with a comma.
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

/// Returns all paths in the use tree that begins at `at`: `a::{b, c::d}` gives a::b and a::c::d.
fn paths<'a>(tokens: &[Token<'a>], at: usize) -> Vec<Vec<&'a str>> {
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text);
    if text(at) != "{" {
        let rest = if text(at + 1) == "::" {
            at + 2
        } else {
            usize::MAX
        };
        let mut below = match text(rest) {
            "" | "<" => vec![vec![]],
            _ => paths(tokens, rest),
        };
        for path in &mut below {
            path.insert(0, text(at));
        }
        return below;
    }
    let end = closing(tokens, at);
    let (mut found, mut begins, mut i) = (vec![], true, at + 1);
    while i < end {
        if begins {
            found.extend(paths(tokens, i));
        }
        begins = text(i) == ",";
        i = if text(i) == "{" {
            closing(tokens, i) + 1
        } else {
            i + 1
        };
    }
    found
}

/// Collects the names that a use tree imports, each with the first part of its path.
fn brought<'a>(tokens: &[Token<'a>], head: Option<&'a str>, found: &mut Vec<(&'a str, &'a str)>) {
    let mut at = 0;
    while at < tokens.len() {
        // Handles one path, up to the comma.
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

/// The names in a folder's own module.
struct Own<'a> {
    /// The modules in the folder.
    modules: BTreeSet<&'a str>,
    /// Imported names, and the first part of the path of each.
    names: BTreeMap<&'a str, &'a str>,
}

impl Own<'_> {
    /// Returns the node to which `name` in the folder's own module belongs; None if it belongs to
    /// another folder.
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

/// Collects all source files below `dir`, with the names of their modules from the top.
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

/// The source of a crate, without code that is built only for tests.
pub struct Source {
    /// Path from the crate's `src`, names of the modules from the top, text.
    files: Vec<(PathBuf, Vec<String>, String)>,
}

impl Source {
    /// Reads the source of the crate in the folder `src`.
    pub fn of_crate(src: &Path) -> Source {
        let mut all = Vec::new();
        files(src, &[], &mut all);
        let read = |(path, module): (PathBuf, Vec<String>)| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(src).unwrap().to_owned(), module, text)
        };
        let files: Vec<_> = all.into_iter().map(read).collect();
        // Modules that are built only for tests, by the names of the modules from the top.
        let mut for_tests: BTreeSet<Vec<String>> = BTreeSet::new();
        for (_, module, text) in &files {
            let mut in_files = BTreeSet::new();
            drop_tests(tokens(text), &mut in_files);
            let below = |name: &&str| [&module[..], &[(*name).to_owned()]].concat();
            for_tests.extend(in_files.iter().map(below));
        }
        let is_for_tests =
            |module: &[String]| (1..=module.len()).any(|n| for_tests.contains(&module[..n]));
        let files = files.into_iter().filter(|(_, m, _)| !is_for_tests(m));
        Source {
            files: files.collect(),
        }
    }

    /// Returns the modules that have a folder of their own, the crate itself first.
    pub fn folders(&self) -> BTreeSet<Vec<String>> {
        let above = |(_, module, _): &(PathBuf, Vec<String>, String)| {
            let module = module.clone();
            (0..module.len()).map(move |n| module[..n].to_vec())
        };
        self.files.iter().flat_map(above).collect()
    }

    /// Returns the imports among the modules of a folder.
    pub fn imports(&self, folder: &[String]) -> Imports {
        let within = self.files.iter().filter(|(_, m, _)| m.starts_with(folder));
        let parsed: Vec<_> = within
            .map(|(path, module, text)| {
                let tokens = drop_tests(tokens(text), &mut BTreeSet::new());
                (path, &module[..], tokens)
            })
            .collect();
        let mut own = Own {
            modules: BTreeSet::new(),
            names: BTreeMap::new(),
        };
        for (_, module, tokens) in &parsed {
            if let Some(name) = module.get(folder.len()) {
                own.modules.insert(name);
                continue;
            }
            for (i, token) in tokens.iter().enumerate() {
                let text = |i: usize| tokens.get(i).map_or("", |t| t.text);
                if token.text == "mod" && [";", "{"].contains(&text(i + 2)) {
                    own.modules.insert(text(i + 1));
                }
                if token.text == "use" {
                    let end = (i..tokens.len()).find(|&e| text(e) == ";").unwrap();
                    let mut names = Vec::new();
                    brought(&tokens[i + 1..end], None, &mut names);
                    own.names.extend(names);
                }
            }
        }
        let mut imports = Imports::new();
        for (path, module, tokens) in &parsed {
            let node = module.get(folder.len()).map_or(ROOT, |name| name);
            let to = imports.entry(node.to_owned()).or_default();
            for (name, line) in names_of_folder(tokens, module, folder, &own) {
                if let Some(other) = own.node(&name).filter(|other| other != node) {
                    let place = || format!("{}:{line}", path.display());
                    to.entry(other).or_insert_with(place);
                }
            }
        }
        imports
    }
}

/// Returns the names of the folder's own module that a file of the folder uses, with the line of
/// each.
fn names_of_folder(
    tokens: &[Token<'_>],
    module: &[String],
    folder: &[String],
    own: &Own<'_>,
) -> Vec<(String, usize)> {
    let text = |i: usize| tokens.get(i).map_or("", |t| t.text);
    let mut found = Vec::new();
    // Indices of the tokens that end the inline modules around the current token.
    let mut open: Vec<usize> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        open.retain(|&end| end > i);
        if text(i) == "mod" && text(i + 2) == "{" {
            open.push(closing(tokens, i + 2));
        }
        let before = if i > 0 { text(i - 1) } else { "" };
        let begins = before != "::" && before != ".";
        let is_own = module.len() == folder.len();
        let line = tokens[i].line;
        if begins && text(i) == "crate" && text(i + 1) == "::" {
            for path in paths(tokens, i + 2) {
                let is_below = folder.iter().zip(&path).all(|(a, b)| a == b);
                if is_below && let Some(name) = path.get(folder.len()) {
                    found.push(((*name).to_owned(), line));
                }
            }
        } else if begins && text(i) == "super" && text(i + 1) == "::" {
            let mut depth = module.len() + open.len();
            while text(i) == "super" && text(i + 1) == "::" {
                depth -= 1;
                i += 2;
            }
            for path in paths(tokens, i) {
                let above = module[..depth.min(module.len())].iter().map(String::as_str);
                let path: Vec<&str> = above.chain(path).collect();
                let is_below = folder.iter().zip(&path).all(|(a, b)| a == b);
                if is_below && let Some(name) = path.get(folder.len()) {
                    found.push(((*name).to_owned(), line));
                }
            }
            continue;
        } else if begins && is_own && text(i) == "use" && is_re_export(tokens, i) {
            // The path of a re-export doesn't count as an import by the folder's own module.
            while text(i) != ";" {
                i += 1;
            }
        } else if begins && is_own && text(i + 1) == "::" && own.modules.contains(text(i)) {
            found.push((text(i).to_owned(), line));
        }
        i += 1;
    }
    found
}

/// Whether the `use` at `at` has a visibility, and so re-exports.
fn is_re_export(tokens: &[Token<'_>], at: usize) -> bool {
    at > 0 && ["pub", ")"].contains(&tokens[at - 1].text)
}

/// Returns the cycles: sets of several modules, each of which imports all others, directly or
/// through other modules.
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

/// Describes the imports of which each cycle consists.
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
