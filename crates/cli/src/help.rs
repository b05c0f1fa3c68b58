//! The command line as clap sees it, with its commands grouped by purpose.
//!
//! clap lists all commands in one block. [`command`] replaces that block in the help of `forebay`
//! by one for each row of [`GROUPS`]. A command in no row is listed at the end, so none is hidden.

use crate::args::Cli;
use clap::builder::StyledStr;
use clap::builder::styling::Style;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::fmt::Write;

/// Commands by purpose, in the order in which the help lists them.
const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Commands to start and end pools",
        &["run", "up", "exec", "down", "mount", "umount", "pools"],
    ),
    (
        "Commands for files in a pool",
        &["ls", "cat", "cp", "mv", "rm", "mkdir", "find", "du", "df"],
    ),
    (
        "Commands to move and describe data",
        &[
            "stage",
            "origin",
            "workspace",
            "collection",
            "campaign",
            "campaignd",
            "flow",
            "set",
            "rules",
            "violations",
        ],
    ),
    (
        "Commands to observe a pool",
        &["status", "stats", "top", "trace", "report"],
    ),
    ("Commands to check and repair", &["doctor", "fsck", "node"]),
    (
        "Commands about forebay itself",
        &["version", "completions", "help"],
    ),
];

/// The command line with its help by purpose.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let template = template(&command);
    command.help_template(template)
}

/// Parses the arguments of this process. On wrong usage, and for `--help`, prints and exits.
pub fn parse(words: Vec<OsString>) -> Cli {
    let mut command = command().color(color_of_help(&words));
    let mut matches = command
        .try_get_matches_from_mut(words)
        .unwrap_or_else(|e| with_direction(e).exit());
    Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|e| e.format(&mut command).exit())
}

/// A complaint about `forebay stage SRC DST`, where the direction is missing, says so.
fn with_direction(mut error: clap::Error) -> clap::Error {
    let of_stage = matches!(
        error.get(ContextKind::Usage),
        Some(ContextValue::StyledStr(usage)) if usage.to_string().contains("forebay stage ")
    );
    if error.kind() == ErrorKind::InvalidSubcommand && of_stage {
        let tip = "name the direction first: 'forebay stage in SRC DST' brings SRC into the pool, \
                   'forebay stage out SRC DST' takes it out";
        let tips = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tips);
    }
    error
}

/// When help and complaints about usage have colours: they are printed before `--color` is parsed.
fn color_of_help(words: &[OsString]) -> ColorChoice {
    let mut own = words.iter().take_while(|word| *word != "--");
    while let Some(word) = own.next().and_then(|word| word.to_str()) {
        let value = match word.strip_prefix("--color") {
            Some("") => own.next().and_then(|value| value.to_str()),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        match value {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => {}
        }
    }
    ColorChoice::Auto
}

/// Names and first lines of the visible commands, in the order of their declaration.
fn listed(command: &clap::Command) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .map(|c| {
            let about = c.get_about().map(ToString::to_string).unwrap_or_default();
            (c.get_name().to_owned(), about)
        })
        .collect();
    // clap adds this one when it parses.
    all.push(("help".into(), "Print the help of a command".into()));
    all
}

fn template(command: &clap::Command) -> StyledStr {
    let all = listed(command);
    let (header, literal) = (Style::new().bold().underline(), Style::new().bold());
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut block = |title: &str, names: &[&str]| {
        let rows: Vec<&(String, String)> = names
            .iter()
            .filter_map(|name| all.iter().find(|(n, _)| n == name))
            .collect();
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{header}{title}:{header:#}");
        for (name, about) in rows {
            let _ = writeln!(text, "  {literal}{name:width$}{literal:#}  {about}");
        }
    };
    for (title, names) in GROUPS {
        block(title, names);
    }
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let rest: Vec<&str> = all.iter().map(|(n, _)| n.as_str()).collect();
    let rest: Vec<&str> = rest.into_iter().filter(|n| !is_grouped(n)).collect();
    block("Other commands", &rest);
    let _ = write!(
        text,
        "\n{header}Options:{header:#}\n{{options}}\n\n{{after-help}}"
    );
    StyledStr::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_listed_once() {
        let mut command = command();
        let text = command.render_help().to_string();
        for (name, about) in listed(&Cli::command()) {
            let line = format!("\n  {name} ");
            assert_eq!(text.matches(&line).count(), 1, "{name}");
            assert!(text.contains(&about), "{name}");
        }
        for (title, names) in GROUPS {
            assert!(text.contains(&format!("\n{title}:\n")));
            for name in names {
                let all = listed(&Cli::command());
                assert!(all.iter().any(|(n, _)| n == name), "{name} is no command");
            }
        }
        assert!(text.contains("Exit codes:"));
    }
    #[test]
    fn staging_without_a_direction_gets_a_tip() {
        let complaint = |words: &[&str]| {
            let error = command().try_get_matches_from(words).unwrap_err();
            with_direction(error).to_string()
        };
        let text = complaint(&["forebay", "stage", "./data", "/data"]);
        assert!(text.contains("forebay stage in SRC DST"), "{text}");
        let text = complaint(&["forebay", "campaign", "crate"]);
        assert!(!text.contains("SRC"), "{text}");
    }
}
