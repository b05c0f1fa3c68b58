//! `forebay rules`: checks files of rules, and shows which controls they give a path.

use crate::args::RulesWhat;
use crate::fail::{Fail, code};
use crate::output::{count, json, note, print_notice, write};
use crate::rule_file::read;
use crate::{found, paths};
use forebay_client::Pool;
use forebay_client::controls::{Declared, Explanation, Origin, Rule, Rules};
use forebay_posix::{Errno, Fs, ObjectId};
use serde_json::{Value, json as value};
use std::ffi::OsStr;
use std::fmt::Write;

pub fn rules(name: &str, what: &RulesWhat) -> Result<u8, Fail> {
    match what {
        RulesWhat::Check { file, mount } => {
            let rules = read(Some(file), mount)?;
            note(format!(
                "{}: {}, no error",
                file.display(),
                count(rules.all().len() as u64, "rule")
            ));
        }
        RulesWhat::Show { json: as_json } => {
            let pool = Pool::open(name)?;
            let all = pool.config().rules.all();
            if *as_json {
                return json(&all.iter().map(rule_as_json).collect::<Vec<_>>()).map(|()| code::OK);
            }
            if all.is_empty() {
                print_notice(
                    "this pool has no rules: every file is strict, unless declared otherwise with: forebay set",
                );
            }
            let text: Vec<String> = all.iter().map(as_toml).collect();
            write(text.join("\n").as_bytes())?;
        }
        RulesWhat::Explain {
            file: Some(file),
            json,
            path,
        } => {
            let mount = "/fb";
            let rules = read(Some(file), mount)?;
            let declared = rules.explain(&paths::in_mount(path, mount));
            of_new(&rules, &declared, Declared::NOTHING).print(*json)?;
        }
        RulesWhat::Explain {
            file: None,
            json,
            path,
        } => return explain(name, path, *json),
    }
    Ok(code::OK)
}

/// Formats a rule as in a file of rules.
fn as_toml(rule: &Rule) -> String {
    let mut text = format!("[[rule]]\npath = {:?}\n", rule.pattern.text());
    for (control, value) in rule.controls.values() {
        if let Some(value) = value {
            let _ = writeln!(text, "{control} = {value:?}");
        }
    }
    text
}

fn rule_as_json(rule: &Rule) -> Value {
    let values = rule.controls.values().into_iter();
    let controls: serde_json::Map<String, Value> = values
        .filter_map(|(control, value)| Some((control.to_string(), value?.into())))
        .collect();
    value!({ "path": rule.pattern.text(), "controls": controls })
}

/// A path's controls, each with the rule or declaration from which it comes.
#[derive(Default)]
struct Explained {
    /// Each row: control, value, and where the value comes from.
    rows: Vec<[String; 3]>,
    /// The distribution of a directory in a pool of several nodes.
    distribution: Option<String>,
    laminated: bool,
}

impl Explained {
    fn print(&self, as_json: bool) -> Result<(), Fail> {
        if as_json {
            let rows = self.rows.iter();
            let controls: Vec<Value> = rows
                .map(|[control, value, from]| {
                    value!({ "control": control, "value": value, "from": from })
                })
                .collect();
            return json(&value!({
                "controls": controls, "distribution": self.distribution,
                "laminated": self.laminated,
            }));
        }
        let mut text = String::new();
        for [control, value, from] in &self.rows {
            let _ = writeln!(text, "{control:<12} {value:<20} {from}");
        }
        if let Some(how) = &self.distribution {
            let _ = writeln!(text, "{:<12} {how:<20} since it was made", "distribution");
        }
        if self.laminated {
            text.push_str("laminated: it was written and closed, and never changes again\n");
        }
        write(text.as_bytes())
    }
}

/// Prints the controls of a pool's file; for a directory, those that new files in it get; for a
/// missing path, those that it would get.
fn explain(name: &str, path: &OsStr, as_json: bool) -> Result<u8, Fail> {
    let pool = found::open(name, None)?;
    let rules = pool.config().rules.clone();
    let inside = paths::in_pool(path, &pool);
    let fs = Fs::new(pool);
    let shown = path.to_string_lossy();
    let failed = |e: Errno| Fail::failed(format!("{shown}: can't look at it: {e}"));
    let look = |path: &[u8]| -> Result<Option<Found>, Fail> {
        match fs.stat(path, true) {
            Ok(stat) => {
                let id = ObjectId(stat.ino);
                let is_dir = stat.mode & libc::S_IFMT == libc::S_IFDIR;
                let (declared, laminated) = fs.controls_of(id).map_err(failed)?;
                Ok(Some((id, is_dir, declared, laminated)))
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(e) => Err(failed(e)),
        }
    };
    let explained = match look(&inside)? {
        Some((id, true, declared, _)) => {
            let mut explained = of_new(&rules, &rules.explain_within(&inside), declared);
            if fs.pool().config().member.is_some() {
                explained.distribution = Some(id.distribution().to_string());
            }
            print_notice(format!(
                "{shown} is a directory: this is what a new file gets in it, whatever its name"
            ));
            explained
        }
        Some((_, false, has, laminated)) => {
            if has.resolve() == Declared::NOTHING.resolve() && !laminated {
                print_notice(format!(
                    "{shown} is there, and strict; rules count when a file is made"
                ));
            }
            of_file(&has, laminated)
        }
        None => {
            // A missing path inherits from its parent directory, if that exists.
            let parent = inside.iter().rposition(|b| *b == b'/');
            let above = look(&inside[..parent.map_or(0, |at| at.max(1))])?;
            let above = above.map_or(Declared::NOTHING, |(_, _, declared, _)| declared);
            of_new(&rules, &rules.explain(&inside), above)
        }
    };
    let _ = fs.store().recovery().detach();
    explained.print(as_json)?;
    Ok(code::OK)
}

/// An existing object at a path: its id, whether it is a directory, its declared controls, and
/// whether it is laminated.
type Found = (ObjectId, bool, Declared, bool);

/// Returns the controls of an existing file.
fn of_file(has: &Declared, laminated: bool) -> Explained {
    let mut explained = Explained {
        laminated,
        ..Explained::default()
    };
    for (control, value) in Declared::from(has.resolve()).values() {
        let is_declared = has
            .values()
            .iter()
            .any(|(c, v)| *c == control && v.is_some());
        let from = if is_declared {
            "declared for it"
        } else {
            "default"
        };
        let value = value.unwrap_or_default();
        let row = [control.to_string(), value.to_string(), from.to_owned()];
        explained.rows.push(row);
    }
    explained
}

/// Returns the controls of a new file: those declared for its directory, and those of rules.
fn of_new(rules: &Rules, by_rules: &[Explanation], above: Declared) -> Explained {
    let mut explained = Explained::default();
    for declared in by_rules {
        let of_directory = above
            .values()
            .into_iter()
            .find(|(c, _)| *c == declared.control);
        let (value, from) = match (of_directory.and_then(|(_, value)| value), declared.origin) {
            (Some(value), _) => (value, "declared for its directory".to_owned()),
            (None, Origin::Default) => (declared.value.clone(), "default".to_owned()),
            (None, Origin::Rule(i)) => {
                let rule = &rules.all()[i];
                let from = format!("line {}: {}", rule.line, rule.pattern.text());
                (declared.value.clone(), from)
            }
        };
        let row = [declared.control.to_string(), value.to_string(), from];
        explained.rows.push(row);
    }
    explained
}
