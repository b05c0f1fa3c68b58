//! `forebay rules`: files of rules, and what they say of a path.

use crate::args::RulesWhat;
use crate::fail::{Fail, code};
use crate::output::{say, write};
use crate::{exec, paths};
use forebay_client::controls::{Declared, Origin, Rule, Rules};
use forebay_client::{Pool, impossible};
use forebay_media::MediumSpec;
use forebay_posix::{Errno, Fs, ObjectId};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

/// The rules in a file; none without one. `mount` is the pool's prefix.
///
/// # Errors
/// What isn't a rule, with line and column.
pub fn read(file: Option<&Path>, mount: &str) -> Result<Rules, Fail> {
    let Some(file) = file else {
        return Ok(Rules::default());
    };
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|e| Fail::usage(format!("can't read the rules in {shown}: {e}")))?;
    Rules::parse(&text, mount).map_err(|e| Fail::usage(format!("{shown}, {e}")))
}

/// As [`read`], for a pool with these media.
///
/// # Errors
/// As there; what can't be kept on them.
pub fn read_for(file: Option<&Path>, mount: &str, media: &[MediumSpec]) -> Result<Rules, Fail> {
    let rules = read(file, mount)?;
    for rule in rules.all() {
        if let Some(why) = impossible(&rule.said.resolve(), media) {
            return Err(Fail::usage(format!(
                "{}, line {}: {why}",
                file.unwrap_or(Path::new("")).display(),
                rule.line
            )));
        }
    }
    Ok(rules)
}

pub fn rules(name: &str, what: &RulesWhat) -> Result<u8, Fail> {
    match what {
        RulesWhat::Check { file, mount } => {
            let rules = read(Some(file), mount)?;
            say(format!(
                "{}: {} rules, no error",
                file.display(),
                rules.all().len()
            ));
        }
        RulesWhat::Show => {
            let pool = Pool::open(name)?;
            let all = pool.config().rules.all();
            if all.is_empty() {
                say(
                    "this pool has no rules: every file is strict, unless said otherwise with: forebay set",
                );
            }
            let text: Vec<String> = all.iter().map(as_toml).collect();
            write(text.join("\n").as_bytes())?;
        }
        RulesWhat::Explain {
            file: Some(file),
            path,
        } => {
            let mount = "/fb";
            let rules = read(Some(file), mount)?;
            write(explained(&rules, &paths::in_pool(path, mount)).as_bytes())?;
        }
        RulesWhat::Explain { file: None, path } => return explain(name, path),
    }
    Ok(code::OK)
}

/// A rule as it is written.
fn as_toml(rule: &Rule) -> String {
    let mut text = format!("[[rule]]\npath = {:?}\n", rule.pattern.text());
    for (control, value) in rule.said.values() {
        if let Some(value) = value {
            let _ = writeln!(text, "{control} = {value:?}");
        }
    }
    text
}

/// What rules say of a path: a line for each control.
fn explained(rules: &Rules, path: &[u8]) -> String {
    let mut text = String::new();
    for said in rules.explain(path) {
        let from = match said.origin {
            Origin::Default => "default".to_owned(),
            Origin::Rule(i) => {
                let rule = &rules.all()[i];
                format!("line {}: {}", rule.line, rule.pattern.text())
            }
        };
        let _ = writeln!(text, "{:<12} {:<20} {from}", said.control, said.value);
    }
    text
}

/// What a path of a pool has, if it is there; else what it would get.
fn explain(name: &str, path: &OsStr) -> Result<u8, Fail> {
    let pool = exec::open(name, None)?;
    let rules = pool.config().rules.clone();
    let inside = paths::in_pool(path, &pool.config().mount);
    let fs = Fs::new(pool);
    let shown = path.to_string_lossy();
    let failed = |e: Errno| Fail::failed(format!("{shown}: can't look at it: {e}"));
    let controls_of = |path: &[u8]| match fs.stat(path, true) {
        Ok(stat) => fs.controls_of(ObjectId(stat.ino)).map(Some),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(e) => Err(e),
    };
    let mut text = String::new();
    match controls_of(&inside).map_err(failed)? {
        Some((has, laminated)) => {
            let strict = Declared::NOTHING.resolve();
            for (control, value) in Declared::from(has.resolve()).values() {
                let said = has
                    .values()
                    .into_iter()
                    .any(|(c, v)| c == control && v.is_some());
                let from = if said { "said of it" } else { "default" };
                let _ = writeln!(
                    text,
                    "{control:<12} {:<20} {from}",
                    value.unwrap_or_default()
                );
            }
            let several = fs.pool().config().member.is_some();
            if let Ok(stat) = fs.stat(&inside, true)
                && several
                && stat.mode & libc::S_IFMT == libc::S_IFDIR
            {
                let how = ObjectId(stat.ino).distribution().to_string();
                let _ = writeln!(text, "{:<12} {how:<20} since it was made", "distribution");
            }
            if laminated {
                text.push_str("laminated: it was written and closed, and never changes again\n");
            } else if has.resolve() == strict {
                say(format!(
                    "{shown} is there, and strict; rules count when a file is made"
                ));
            }
        }
        None => {
            // What is said of the nearest directory above holds for what is made there.
            let parent = inside
                .iter()
                .rposition(|b| *b == b'/')
                .map_or(0, |at| at.max(1));
            let above = controls_of(&inside[..parent]).map_err(failed)?;
            let above = above.map_or(Declared::NOTHING, |(said, _)| said);
            for said in rules.explain(&inside) {
                let of_directory = above.values().into_iter().find(|(c, _)| *c == said.control);
                let (value, from) = match (of_directory.and_then(|(_, v)| v), said.origin) {
                    (Some(value), _) => (value, "said of its directory".to_owned()),
                    (None, Origin::Default) => (said.value, "default".to_owned()),
                    (None, Origin::Rule(i)) => {
                        let rule = &rules.all()[i];
                        (
                            said.value,
                            format!("line {}: {}", rule.line, rule.pattern.text()),
                        )
                    }
                };
                let _ = writeln!(text, "{:<12} {value:<20} {from}", said.control);
            }
        }
    }
    let _ = fs.store().detach();
    write(text.as_bytes())?;
    Ok(code::OK)
}
