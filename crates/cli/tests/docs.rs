//! Tests that the docs agree with the code: numbers in `docs/internals/formats.md` and
//! `docs/explanation/semantics.md`, kinds of records, the functions named by the newcomer's walk in
//! `ARCHITECTURE.md`, and the map of the folders. Also checks links, line lengths, words, and the
//! status of decisions. (`limits.rs` does the same for `docs/reference/limits.md`.)

mod workspace;

use std::fs;
use std::path::Path;
use std::process::Command;
use workspace::root;

/// The page about the formats on media and in shared memory.
const FORMATS: &str = "docs/internals/formats.md";

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Reads a file of a crate, given by the crate's name and a path: `store/src/live.rs`.
fn source(file: &str) -> String {
    let (name, rest) = file.split_once('/').unwrap();
    let crates = workspace::crates();
    let dir = crates
        .get(name)
        .unwrap_or_else(|| panic!("no crate has {file}"));
    fs::read_to_string(dir.join(rest)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// Pages outside of `docs/`. (CHANGELOG.md is left out: it describes the past.)
const AT_THE_TOP: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "HACKING.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

/// Lists all Markdown files for people: those below `docs/` and [`AT_THE_TOP`]. Paths are relative
/// to the repository's root.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = AT_THE_TOP.map(String::from).to_vec();
    let mut dirs = vec!["docs".to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(root().join(&dir)).unwrap().map(Result::unwrap) {
            let path = format!("{dir}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 30, "only {} pages were found", pages.len());
    pages
}

/// Returns the lines outside of code blocks, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = (1..).zip(text.lines());
    lines
        .filter(|(_, line)| {
            let fence = line.trim_start().starts_with("```");
            is_code ^= fence;
            !fence && !is_code
        })
        .collect()
}

/// Returns the texts in backquotes on a line.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Evaluates an expression of whole numbers, `<<`, `*`, parentheses and a few names. A `Duration`
/// has the value of its number, in whichever unit it is.
fn value(text: &str) -> Option<u64> {
    let text = match text.strip_prefix("if cfg!(loom) {") {
        Some(rest) => rest.split_once("else {")?.1.trim().trim_end_matches('}'),
        None => text,
    };
    let text = text.replace(['(', ')'], "");
    let units = ["Duration::from_secs", "Duration::from_millis"];
    let text = units.iter().fold(text, |text, unit| text.replace(unit, ""));
    if let Some((a, b)) = text.split_once("<<") {
        return Some(value(a)? << value(b)?);
    }
    if let Some((a, b)) = text.split_once('*') {
        return Some(value(a)? * value(b)?);
    }
    let names = |name: &str| match name {
        "CELL_PAGES" => Some(256),
        "PAGE" => Some(4096),
        "CHUNK" => Some(1 << 20),
        "SLOTS as usize / 16" => Some(16384),
        _ => None,
    };
    let text = text.trim().trim_end_matches(" as u64");
    text.replace('_', "").parse().ok().or_else(|| names(text))
}

#[test]
fn each_number_is_the_constants() {
    let mut compared = 0;
    let pages = [FORMATS, "docs/explanation/semantics.md"].map(|page| (page, read(page)));
    let tables = pages.iter().flat_map(|(page, text)| {
        let section = text.split("\n## Numbers of ").nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter(|l| l.starts_with("| ")).skip(1);
        rows.map(move |row| (page, row))
    });
    for (page, line) in tables {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, said, place] = cells[..] else {
            panic!("{page}: three cells, not {line}");
        };
        let said: u64 = said.parse().unwrap_or_else(|_| panic!("a number: {line}"));
        let (file, constant) = quoted(place)[0].split_once(':').unwrap();
        let source = source(file);
        let declared = format!("const {constant}: ");
        let values: Vec<Option<u64>> = source
            .split(&declared)
            .skip(1)
            .filter_map(|rest| rest.split_once(" = ")?.1.split_once(';'))
            .map(|(expression, _)| value(expression))
            .collect();
        assert!(
            values.contains(&Some(said)),
            "{page}: {name} is said to be {said}; {file} has {constant} = {values:?}"
        );
        compared += 1;
    }
    assert!(compared > 60, "only {compared} numbers were compared");
}

#[test]
fn each_kind_of_record_is_in_the_table() {
    let text = read(FORMATS);
    let section = text.split("\n## Records").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut told: Vec<char> = (section.lines())
        .filter_map(|line| line.strip_prefix("| `")?.chars().next())
        .collect();
    let record = source("records/src/record.rs");
    let (parked, journal) = (source("records/src/lmdb/parked.rs"), "pub const JOURNAL");
    let tags = ["Key::new(b'", "key.bytes[0] = b'"];
    let mut made: Vec<char> = (tags.iter())
        .flat_map(|tag| record.split(tag).skip(1))
        .chain(record.split(&format!("{journal}: &[u8] = b\"")).skip(1))
        .chain(parked.split("const TAG: u8 = b'").skip(1))
        .filter_map(|rest| rest.chars().next())
        .collect();
    told.sort_unstable();
    made.sort_unstable();
    made.dedup();
    assert!(made.len() > 12, "only {made:?} were found in the code");
    assert_eq!(told, made, "kinds of records: {FORMATS}, and record.rs");
}

#[test]
fn each_step_of_the_walk_is_a_function() {
    let text = read("ARCHITECTURE.md");
    let section = text.split("## A newcomer's walk").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut named = 0;
    for place in quoted(section) {
        let Some((file, function)) = place.split_once(".rs:") else {
            continue;
        };
        let source = source(&format!("{file}.rs"));
        let is_there = ["(", "<"]
            .iter()
            .any(|end| source.contains(&format!("fn {function}{end}")));
        assert!(is_there, "ARCHITECTURE.md: {place} isn't there");
        named += 1;
    }
    assert!(named > 40, "only {named} functions were found in the walk");
    let walks: Vec<&str> = section.split("\n### ").skip(1).collect();
    assert_eq!(walks.len(), 5, "create, write, read, rename, a remote stat");
    for walk in walks {
        assert!(!walk.contains("\n11. "), "a walk has ten steps at most");
    }
}

#[test]
fn the_map_is_that_of_the_folders() {
    let script = root().join("packaging/site/map.py");
    let check = Command::new("python3").arg(script).arg("--check").output();
    let check = check.unwrap_or_else(|e| panic!("python3: {e}"));
    let error = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{error}");
}

/// Checks paths in backquotes and code blocks: `crates/cli/tests/docs.rs`, `tests/pools/cases`.
#[test]
fn each_file_that_developers_are_sent_to_exists() {
    let is_sign = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let begins = ["crates/", "tests/", "python/", "packaging/", "tools/"];
    let mut named = 0;
    for page in AT_THE_TOP {
        let text = read(page);
        for word in text.split(|c| !is_sign(c)) {
            let path = word.trim_end_matches('.');
            if begins.iter().any(|start| path.starts_with(start)) {
                assert!(root().join(path).exists(), "{page}: there is no {path}");
                named += 1;
            }
        }
    }
    assert!(named > 30, "only {named} files were found");
}

#[test]
fn each_link_leads_somewhere() {
    let mut followed = 0;
    for page in pages() {
        let text = read(&page);
        let dir = root().join(Path::new(&page).parent().unwrap());
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', ' ', '\n']).next().unwrap();
            let (file, _) = target.split_once('#').unwrap_or((target, ""));
            if file.is_empty() || file.contains("://") {
                continue;
            }
            assert!(dir.join(file).exists(), "{page}: nothing at {target}");
            followed += 1;
        }
    }
    assert!(followed > 100, "only {followed} links were found");
}

#[test]
fn prose_ends_at_100_columns() {
    for page in pages() {
        let text = read(&page);
        for (number, line) in prose(&text) {
            let is_table = line.trim_start().starts_with('|');
            let width = line.chars().count();
            assert!(
                is_table || width <= 100 || !line.trim().contains(' '),
                "{page}:{number}: {width} columns"
            );
        }
    }
}

#[test]
fn each_decision_has_a_status() {
    let dir = root().join("docs/decisions");
    let index = read("docs/decisions/README.md");
    let mut seen = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "README.md" {
            continue;
        }
        let text = read(&format!("docs/decisions/{name}"));
        let status = text.lines().nth(2).unwrap_or_default();
        let status = status.strip_prefix("Status: ").unwrap_or_default();
        let known = status.starts_with("stands") || status.starts_with("replaced by ");
        assert!(known, "docs/decisions/{name}: its third line is its status");
        let count = text.lines().count();
        assert!(
            count <= 60,
            "docs/decisions/{name}: {count} lines, 60 at most"
        );
        let row = index.lines().find(|l| l.contains(&format!("({name})")));
        let row = row.unwrap_or_else(|| panic!("docs/decisions/README.md doesn't name {name}"));
        let in_index = row
            .trim_end_matches([' ', '|'])
            .rsplit(" | ")
            .next()
            .unwrap();
        let in_part = |s: &str| s != "stands";
        assert_eq!(
            in_part(in_index),
            in_part(status),
            "docs/decisions/README.md: {name} {in_index:?}, but its page says {status:?}"
        );
        seen += 1;
    }
    assert!(seen > 20, "only {seen} decisions were found");
}

/// Words that `docs/concepts.md` lists as not used.
const NOT_USED: [&str; 10] = [
    "anew",
    "under way",
    "stranger",
    "strangers",
    "crew",
    "twin",
    "quiet moment",
    "as said",
    "so long",
    "desk",
];

/// Whether `text` contains the words of `phrase` in a row, in any case.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let is_sign = |c: char| !c.is_alphanumeric() && c != '_' && c != '-';
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split(is_sign).filter(|w| !w.is_empty()).collect();
    let wanted: Vec<&str> = phrase.split(' ').collect();
    words.windows(wanted.len()).any(|w| w == wanted)
}

#[test]
fn words_of_the_glossary_are_used() {
    assert!(has_phrase("it goes Under\nway.", "under way"));
    assert!(!has_phrase("a desktop, `so`-long", "desk"));
    let concepts = read("docs/concepts.md");
    let (glossary, left) = concepts.split_once("## Words that are not used").unwrap();
    for word in NOT_USED {
        let is_listed = left.contains(&format!("`{word}`"));
        assert!(is_listed, "docs/concepts.md doesn't list {word}");
    }
    for page in pages() {
        let text = read(&page);
        let text = if page == "docs/concepts.md" {
            glossary
        } else {
            &text
        };
        for (number, line) in prose(text) {
            // Words in backquotes and targets of links are left out: they name files, functions and
            // options.
            let words: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            let words = words.replace("](", " `").replace(')', " ");
            let words: String = words.split(" `").map(after_link).collect();
            for word in NOT_USED {
                assert!(!has_phrase(&words, word), "{page}:{number}: {word:?}");
            }
            // Each sentence must name the thing that acts: `Who does this` is no subject.
            let begins = ["Who ", "Whoever "];
            let is_one = |s: &str| begins.iter().any(|b| s.starts_with(b)) && !s.contains('?');
            let has_one = [". ", ": ", "; "]
                .iter()
                .any(|e| words.split(e).skip(1).any(is_one));
            assert!(!has_one, "{page}:{number}: a sentence begins with `Who`");
        }
    }
    // A word has one meaning: no term is defined in two rows.
    let mut terms: Vec<&str> = (glossary.lines())
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|term| *term != "term")
        .collect();
    terms.sort_unstable();
    let twice = terms.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "docs/concepts.md defines a term twice");
    assert!(terms.len() > 40, "only {} terms were found", terms.len());
}

/// Returns the text after the target of a link; all of the text if it doesn't begin with a target.
fn after_link(text: &str) -> &str {
    match text.split_once(' ') {
        Some((target, rest)) if target.contains(".md") || target.contains("://") => rest,
        _ => text,
    }
}

#[test]
fn each_decision_that_code_names_exists() {
    let decisions: Vec<String> = fs::read_dir(root().join("docs/decisions"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut dirs = ["crates", "tools"].map(|dir| root().join(dir)).to_vec();
    dirs.retain(|dir| dir.exists());
    let mut named = 0;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
                continue;
            }
            if path.extension().is_none_or(|e| e != "rs") || path.ends_with("tests/docs.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            let places = ["decisions/", "decision "];
            for rest in places.iter().flat_map(|place| text.split(place).skip(1)) {
                let number = rest.get(..4).unwrap_or_default();
                if number.chars().all(|c| c.is_ascii_digit()) && number.len() == 4 {
                    let is_there = decisions.iter().any(|name| name.starts_with(number));
                    assert!(is_there, "{}: no decision {number}", path.display());
                    named += 1;
                }
            }
        }
    }
    assert!(named > 1, "only {named} decisions are named in the code");
}

/// Collects the text files below `dir`, if it exists, with their paths.
fn texts(dir: &str, found: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(root().join(dir)) else {
        return;
    };
    for entry in entries.map(Result::unwrap) {
        let path = format!("{dir}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            texts(&path, found);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            found.push((path, text));
        }
    }
}

/// Returns the names `FOREBAY_...` in a text that follow one of these marks.
fn variables<'t>(text: &'t str, marks: &[&str]) -> Vec<&'t str> {
    let is_sign = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let begins = |mark: &str| format!("{mark}FOREBAY_");
    let found = marks.iter().flat_map(|mark| {
        let behind = text.match_indices(&begins(mark)).collect::<Vec<_>>();
        behind
            .into_iter()
            .map(move |(at, _)| &text[at + mark.len()..])
    });
    let names = found.map(|rest| rest.split(|c| !is_sign(c)).next().unwrap());
    names.filter(|name| name.len() > "FOREBAY_".len()).collect()
}

#[test]
fn each_variable_is_in_the_reference() {
    let page = read("docs/reference/environment.md");
    let told = variables(&page, &["`"]);
    let mut files = Vec::new();
    for dir in ["crates", "tools"] {
        texts(dir, &mut files);
    }
    files.retain(|(path, _)| path.contains("/src/"));
    for dir in ["python/src", "packaging"] {
        texts(dir, &mut files);
    }
    files.push(("hatch_build.py".into(), read("python/hatch_build.py")));
    let mut read_by_code = Vec::new();
    for (path, text) in &files {
        // Leaves out variables that only tests use.
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        if path.ends_with("/tests.rs") || path.contains("/tests/") {
            continue;
        }
        for name in variables(text, &["\"", "'", "$", "${"]) {
            let is_told = told.contains(&name);
            assert!(
                is_told,
                "{path}: docs/reference/environment.md doesn't name {name}"
            );
            read_by_code.push(name);
        }
    }
    for name in told {
        let is_read = read_by_code.contains(&name);
        assert!(
            is_read,
            "docs/reference/environment.md: no code reads {name}"
        );
    }
    assert!(
        read_by_code.len() > 30,
        "only {} places were found",
        read_by_code.len()
    );
}

#[test]
fn pages_name_this_release() {
    let manifest = read("Cargo.toml");
    let section = manifest.split("[workspace.package]").nth(1).unwrap();
    let version = section.split("version = \"").nth(1).unwrap();
    let version = version.split('"').next().unwrap();
    let mut named = 0;
    for page in pages() {
        let text = read(&page);
        for rest in ["forebay-", "forebay_", "forebay/", "Forebay-"]
            .iter()
            .flat_map(|mark| text.split(mark).skip(1))
        {
            let is_sign = |c: char| c.is_ascii_digit() || c == '.';
            let release = rest.split(|c| !is_sign(c)).next().unwrap();
            let release = release.trim_end_matches('.');
            if release.split('.').count() == 3 && release.split('.').all(|n| !n.is_empty()) {
                assert_eq!(
                    release, version,
                    "{page} names a release, and Cargo.toml another"
                );
                named += 1;
            }
        }
    }
    assert!(
        named > 5,
        "only {named} names of files of releases were found"
    );
}
