//! Checks the language of comments and code, as far as a program can.
//!
//! - No sentence of a comment begins with *Who* or *What* as its subject.
//! - Comments avoid the words that `docs/concepts.md` lists as not used.
//! - The documentation of a constant or field that is a maximum says so: it doesn't begin with
//!   *Most*.
//! - A condition is an `if`: no `match` has the arms `true` and `false` only.
//!
//! The test builds and runs nothing: it reads the sources of all crates.

use std::fs;
use std::path::Path;

/// Returns all Rust sources of the workspace: path and text.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let is_root = |dir: &&Path| dir.join("Cargo.lock").exists();
    let root = root.into_iter().find(is_root).expect("the workspace");
    let (mut found, mut dirs) = (Vec::new(), vec![root.join("crates"), root.join("tools")]);
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push((shown(root, &path), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 500, "only {} sources were found", found.len());
    found
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap().display().to_string()
}

/// A paragraph of a comment.
struct Paragraph<'a> {
    /// Number of its first line.
    line: usize,
    text: String,
    /// The first line of code after the comment.
    code: &'a str,
}

/// Returns the text of a comment line without its slashes; None if it is no comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Returns the paragraphs of a source's comments, without the code blocks in them.
fn paragraphs(source: &str) -> Vec<Paragraph<'_>> {
    let lines: Vec<&str> = source.lines().collect();
    let is_code = |line: &&&str| comment(line).is_none() && !line.trim_start().starts_with("#[");
    let mut all: Vec<Paragraph<'_>> = Vec::new();
    let (mut in_paragraph, mut in_block) = (false, false);
    for (n, line) in lines.iter().enumerate() {
        let text = comment(line).unwrap_or_default();
        let is_fence = text.starts_with("```");
        in_block = comment(line).is_some() && (in_block != is_fence);
        let is_item = ["- ", "* ", "|", "#"]
            .iter()
            .any(|item| text.starts_with(item));
        if text.is_empty() || is_fence || in_block {
            in_paragraph = false;
        } else if in_paragraph && !is_item {
            let last = all.last_mut().expect("a paragraph has begun");
            last.text = format!("{} {text}", last.text);
        } else {
            all.push(Paragraph {
                line: n + 1,
                text: text.trim_start_matches(['-', '*', ' ']).to_owned(),
                code: lines[n..].iter().find(is_code).unwrap_or(&""),
            });
            in_paragraph = true;
        }
    }
    all
}

/// Splits a text into sentences.
fn sentences(text: &str) -> Vec<&str> {
    let ends = text.match_indices([' ']).map(|(at, _)| at).filter(|&at| {
        let (before, after) = (&text[..at], &text[at + 1..]);
        let ends = before
            .trim_end_matches(')')
            .ends_with(['.', ':', ';', '?', '!']);
        ends && after.starts_with(|c: char| c.is_uppercase())
    });
    let mut from = 0;
    let mut all: Vec<&str> = Vec::new();
    for at in ends {
        all.push(&text[from..at]);
        from = at + 1;
    }
    all.push(&text[from..]);
    all
}

/// Whether a sentence begins with *Who* or *What* as its subject: not a question, nor the object of
/// an infinitive (`What to copy`).
fn has_pronoun_as_subject(sentence: &str) -> bool {
    let begins = ["Who ", "What "]
        .iter()
        .any(|word| sentence.starts_with(word));
    begins && !sentence.ends_with('?') && !sentence.starts_with("What to ")
}

/// Whether a line of code declares a constant, a static or a field.
fn is_declaration(code: &str) -> bool {
    let code = code.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ').map_or(rest, |(_, rest)| rest),
        None => code,
    };
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let is_field = (code.split_once(": ")).is_some_and(|(name, _)| name.chars().all(is_name));
    code.starts_with("const ") || code.starts_with("static ") || is_field
}

/// Returns the numbers of lines with a `match` whose only arms are `true` and `false`, on lines of
/// their own.
fn matches_on_bool(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let begins = |line: &str| {
        let line = line.trim();
        line.ends_with('{') && (line.starts_with("match ") || line.contains(" match "))
    };
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| begins(line)) {
        let inside = lines[n + 1..].iter();
        let inside = inside.take_while(|l| l.trim().is_empty() || indent(l) > indent(line));
        let arms = inside.filter(|l| indent(l) == indent(line) + 4 && l.contains(" => "));
        let patterns: Vec<&str> = arms.filter_map(|l| l.trim().split(" => ").next()).collect();
        let is_bool = |pattern: &&str| ["true", "false"].contains(pattern);
        if patterns.len() == 2 && patterns.iter().all(is_bool) {
            found.push(n + 1);
        }
    }
    found
}

#[test]
fn no_sentence_begins_with_who_or_what() {
    let mut wrong = Vec::new();
    for (path, source) in sources() {
        for paragraph in paragraphs(&source) {
            let sentences = sentences(&paragraph.text);
            for sentence in sentences.into_iter().filter(|s| has_pronoun_as_subject(s)) {
                wrong.push(format!("{path}:{}: {sentence}", paragraph.line));
            }
        }
    }
    let all = wrong.join("\n");
    assert!(
        wrong.is_empty(),
        "name the thing that acts, or the thing itself:\n{all}"
    );
}

/// Words that `docs/concepts.md` lists as not used. (`docs.rs` refuses them in the pages.)
const NOT_USED: [&str; 7] = [
    "anew",
    "under way",
    "as said",
    "quiet moment",
    "crew",
    "twin",
    "stranger",
];

/// Whether a text has these words in a row.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let wanted: Vec<&str> = phrase.split(' ').collect();
    words.windows(wanted.len()).any(|some| some == wanted)
}

#[test]
fn words_that_are_not_used() {
    let mut wrong = Vec::new();
    for (path, source) in sources() {
        for p in paragraphs(&source) {
            for word in NOT_USED.iter().filter(|word| has_phrase(&p.text, word)) {
                wrong.push(format!("{path}:{}: {word}", p.line));
            }
        }
    }
    let all = wrong.join("\n");
    assert!(wrong.is_empty(), "docs/concepts.md has other words:\n{all}");
}

#[test]
fn a_maximum_is_called_one() {
    let mut wrong = Vec::new();
    for (path, source) in sources() {
        for p in paragraphs(&source) {
            if p.text.starts_with("Most ") && is_declaration(p.code) {
                wrong.push(format!("{path}:{}: {}", p.line, p.text));
            }
        }
    }
    let all = wrong.join("\n");
    assert!(wrong.is_empty(), "write \"Maximum number of …\":\n{all}");
}

#[test]
fn a_condition_is_an_if() {
    let mut wrong = Vec::new();
    for (path, source) in sources() {
        wrong.extend(
            matches_on_bool(&source)
                .into_iter()
                .map(|line| format!("{path}:{line}")),
        );
    }
    let (count, all) = (wrong.len(), wrong.join("\n"));
    assert!(wrong.is_empty(), "{count} matches on a bool:\n{all}");
}

#[test]
fn the_patterns_find_what_they_should() {
    let source = "/// Whole files.\n/// Who has it, writes. What for?\nfn f() {}\n\n/// Most bytes.\n\
        #[allow(x)]\nconst A: u8 = 1;\n";
    let found = paragraphs(source);
    let subjects = |p: &Paragraph<'_>| {
        sentences(&p.text)
            .into_iter()
            .filter(|s| has_pronoun_as_subject(s))
            .count()
    };
    assert_eq!(found.iter().map(subjects).collect::<Vec<_>>(), [1, 0]);
    assert!(found[1].text.starts_with("Most ") && is_declaration(found[1].code));
    assert!(is_declaration("    pub(crate) bytes: u64,") && !is_declaration("fn f(a: u8) {"));
    let matches = "    let a = match b {\n        true => 1,\n        false => {\n            2\n        }\n    };\n\
        match c {\n    true if d => {}\n    false => {}\n}\nmatch e {\n    true => {}\n    false => {}\n}\n";
    assert_eq!(matches_on_bool(matches), [1, 11]);
}
