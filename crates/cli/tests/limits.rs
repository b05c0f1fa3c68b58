//! Tests that the docs agree with the code: each test that `docs/reference/limits.md` names exists,
//! each value that it gives for a constant is right, and `docs/decisions/README.md` names each
//! decision.

mod workspace;

use std::fs;
use std::path::{Path, PathBuf};
use workspace::root;

/// Collects all files below `at` whose names end with `end`, except in `target`.
fn files(at: &Path, end: &str, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
        let path = entry.path();
        match entry.file_type().unwrap().is_dir() {
            true if path.ends_with("target") => {}
            true => files(&path, end, found),
            false if path.to_string_lossy().ends_with(end) => {
                // A file that isn't valid text contains no tests.
                let text = fs::read_to_string(&path).unwrap_or_default();
                found.push((path, text));
            }
            false => {}
        }
    }
}

struct Row {
    line: usize,
    limit: String,
    value: String,
    test: String,
}

fn rows() -> Vec<Row> {
    let text = fs::read_to_string(root().join("docs/reference/limits.md")).unwrap();
    let is_row = |line: &str| line.starts_with("| ") && !line.starts_with("| limit |");
    let lines = (1..).zip(text.lines()).filter(|(_, line)| is_row(line));
    lines
        .map(|(line, text)| {
            let cells: Vec<&str> = text.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(
                cells.len(),
                4,
                "docs/reference/limits.md:{line} has four cells"
            );
            Row {
                line,
                limit: cells[0].to_owned(),
                value: cells[1].to_owned(),
                test: cells[3].to_owned(),
            }
        })
        .collect()
}

/// Returns the texts in backquotes, each with the text before it.
fn quoted(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split('`').collect();
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| (pair[0], pair[1])).collect()
}

/// No limit has two rows. If two branches add the same row, the merge keeps both (.gitattributes).
#[test]
fn no_limit_has_two_rows() {
    let mut limits: Vec<String> = rows().into_iter().map(|row| row.limit).collect();
    limits.sort_unstable();
    let twice = limits.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "docs/reference/limits.md has a limit twice");
}

#[test]
fn each_test_named_exists() {
    let (mut rust, mut python) = (Vec::new(), Vec::new());
    for top in ["crates", "tools"] {
        files(&root().join(top), ".rs", &mut rust);
    }
    files(&root().join("tests"), ".py", &mut python);
    let mut named = 0;
    for row in rows() {
        let tests = quoted(&row.test);
        let is_none = ["none", "(no test)", "-"].contains(&row.test.as_str());
        assert!(
            is_none || !tests.is_empty(),
            "docs/reference/limits.md:{}: a test, or none",
            row.line
        );
        for (_, test) in tests {
            let name = test.rsplit([':', ' ', '/']).next().unwrap();
            let function = format!("fn {name}(");
            let case = format!("def {}(", name.replace('-', "_"));
            let program = name.trim_end_matches(".sh");
            let script = root().join(format!("tests/programs/cases/{program}.sh"));
            let is_file = |path: &Path| path.ends_with(test);
            let mut all = rust.iter().chain(&python);
            let exists = all.any(|(path, _)| is_file(path))
                || rust.iter().any(|(_, text)| text.contains(&function))
                || python.iter().any(|(_, text)| text.contains(&case))
                || script.exists()
                || root().join(test).exists();
            assert!(
                exists,
                "docs/reference/limits.md:{}: there is no test {test}",
                row.line
            );
            named += 1;
        }
    }
    assert!(named > 40, "only {named} tests were found in the table");
}

/// Evaluates an expression of whole numbers, `<<`, `*` and `+`, or of a call with one number.
/// Returns None if it is more complex.
fn value(text: &str) -> Option<u128> {
    let text = match text.strip_prefix("if cfg!(loom) {") {
        Some(rest) => rest.split_once("else {")?.1.trim().trim_end_matches('}'),
        None => text,
    };
    let of_duration = ["::from_secs(", "::from_millis("];
    let text = match of_duration.iter().find_map(|unit| text.split_once(unit)) {
        Some((_, rest)) => rest.trim_end_matches(')'),
        None => text,
    };
    let number = |t: &str| t.trim().replace('_', "").parse::<u128>().ok();
    if let Some((a, b)) = text.split_once("<<") {
        return Some(value(a)? << number(b)?);
    }
    if let Some((a, b)) = text.split_once('*') {
        return Some(value(a)? * value(b)?);
    }
    match text.trim() {
        // Constants to which the values of others refer.
        "MIB" => Some(1 << 20),
        "SLOTS as usize / 16" => Some(16384),
        text => number(text),
    }
}

/// Returns the last whole number in a text: `at most 1,048,576 (` gives 1048576.
fn last_number(text: &str) -> Option<u128> {
    let digits = |c: char| c.is_ascii_digit() || c == ',';
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = text[..end].rfind(|c| !digits(c)).map_or(0, |at| at + 1);
    text[start..end].replace(',', "").parse().ok()
}

#[test]
fn each_value_is_the_constants() {
    let mut rust = Vec::new();
    for top in ["crates", "tools"] {
        files(&root().join(top), ".rs", &mut rust);
    }
    let mut compared = 0;
    for row in rows() {
        for (before, name) in quoted(&row.value) {
            let (file, constant) = name.split_once(':').unwrap_or(("", name));
            let capitals = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if !constant.chars().all(capitals) {
                continue;
            }
            let said = last_number(before);
            let declared = format!("const {constant}: ");
            let values: Vec<Option<u128>> = rust
                .iter()
                .filter(|(path, _)| path.ends_with(file) || file.is_empty())
                .flat_map(|(_, text)| text.split(&declared).skip(1))
                .filter_map(|rest| rest.split_once(" = ")?.1.split_once(';'))
                .map(|(expression, _)| value(expression))
                .collect();
            assert!(
                said.is_some() && values.contains(&said),
                "docs/reference/limits.md:{}: {name} is {values:?} in the code, not {said:?}",
                row.line
            );
            compared += 1;
        }
    }
    assert!(
        compared > 40,
        "only {compared} values were found in the table"
    );
}

#[test]
fn each_decision_is_in_the_index() {
    let dir = root().join("docs/decisions");
    let index = fs::read_to_string(dir.join("README.md")).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "README.md" || index.contains(&format!("({name})")),
            "docs/decisions/README.md doesn't name {name}"
        );
    }
}
