//! The command line as clap sees it, with its commands grouped by purpose.
//!
//! clap lists all commands in one block. In the help of `forebay`, [`command`] replaces that block
//! by one block for each row of [`GROUPS`]. A command in no row is listed at the end, so none is
//! hidden.
//!
//! The help of a command describes its purpose first, with an example, and then its options. An
//! unknown command name gets a tip ([`TIPS`]).

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
    ("Commands for files in a pool", &["ls", "find", "df"]),
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

/// Help template of one command. clap itself puts an empty line before `after-help`.
const OF_COMMAND: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}";

/// Command names of other programs that users may type, and tips on what to use instead.
const TIPS: [(&[&str], &str); 13] = [
    (
        &["put", "upload", "import", "load", "push"],
        "'forebay stage in SRC DST' copies files into a pool",
    ),
    (
        &["get", "download", "export", "save", "pull", "fetch"],
        "'forebay stage out SRC DST' copies files out of a pool",
    ),
    (
        &["sync", "rsync"],
        "'forebay stage in SRC DST' and 'forebay stage out SRC DST' copy what differs; \
         'forebay origin sync' writes back to an origin",
    ),
    (
        &["list", "dir", "tree"],
        "'forebay ls -R PATH' lists files of a pool, 'forebay pools' your pools",
    ),
    (
        &["delete", "remove", "del", "unlink"],
        "'forebay exec -- rm /fb/...' removes files of a pool",
    ),
    (
        &["copy"],
        "'forebay exec -- cp /fb/... /fb/...' copies files inside a pool",
    ),
    (
        &["move", "rename"],
        "'forebay exec -- mv /fb/... /fb/...' renames files of a pool",
    ),
    (
        &["start", "create", "init", "new"],
        "'forebay up' starts a pool, 'forebay run' one for a program",
    ),
    (
        &["stop", "destroy", "kill", "end", "quit"],
        "'forebay down' removes a pool",
    ),
    (
        &["show", "info", "ps", "state"],
        "'forebay status' shows a pool",
    ),
    (
        &["check", "repair"],
        "'forebay fsck' checks a pool, 'forebay doctor' this host",
    ),
    (&["unmount"], "'forebay umount DIR' takes a mount away"),
    (
        &["stat"],
        "'forebay ls -ld PATH' shows a file of a pool, 'forebay rules explain PATH' its controls",
    ),
];

/// Names of former commands of `forebay` that only did what a program does: scripts may still use
/// them.
const REMOVED: [&str; 6] = ["cat", "cp", "mv", "rm", "mkdir", "du"];

/// Returns clap's command line, with its commands grouped by purpose.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let template = template(&command);
    explained(command).help_template(template)
}

/// Sets the help template of a command and of all its subcommands.
fn explained(command: clap::Command) -> clap::Command {
    let command = command.help_template(OF_COMMAND);
    command.mut_subcommands(explained)
}

/// Parses the arguments of this process. On wrong usage, and for `--help`, prints and exits.
pub fn parse(words: Vec<OsString>) -> Cli {
    let mut command = command().color(color_of_help(&words));
    let mut matches = command
        .try_get_matches_from_mut(words)
        .unwrap_or_else(|e| with_tip(with_name(with_direction(e))).exit());
    Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|e| e.format(&mut command).exit())
}

/// Adds to an error about `forebay stage SRC DST` that the direction is missing.
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

/// Adds a tip to two errors: to one about `forebay status NAME` or `-p NAME`, how to name a pool;
/// to one about `forebay stage in SRC`, that the destination is missing.
fn with_name(mut error: clap::Error) -> clap::Error {
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => return error,
    };
    let tip = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(wrong))) => {
            let is_option = wrong.starts_with('-');
            if wrong == "-p" {
                "a pool is named with '--pool NAME'".into()
            } else if !is_option && usage.trim_end().ends_with("[OPTIONS]") {
                format!("a pool is named with '--pool {wrong}'")
            } else {
                return error;
            }
        }
        (ErrorKind::MissingRequiredArgument, _) if usage.contains("forebay stage ") => {
            "both are needed: SRC, what is copied, and DST, where to".into()
        }
        _ => return error,
    };
    let tips = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
    error.insert(ContextKind::Suggested, tips);
    error
}

/// Adds a tip to an error about an unknown command: which command to use.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let of_forebay = matches!(
        error.get(ContextKind::Usage),
        Some(ContextValue::StyledStr(usage)) if usage.to_string().contains("forebay [OPTIONS]")
    );
    let wrong = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(wrong)) if of_forebay => wrong.clone(),
        _ => return error,
    };
    let known = TIPS
        .iter()
        .find(|(words, _)| words.contains(&wrong.as_str()));
    let program = if REMOVED.contains(&wrong.as_str()) {
        Some(format!(
            "'forebay exec -- {wrong} ...' does it, with all options of {wrong}; it sees the pool \
             under /fb"
        ))
    } else {
        is_program(&wrong).then(|| {
            format!(
                "programs see a pool under its prefix: 'forebay exec -- {wrong} /fb/...' runs \
                 {wrong} on its files"
            )
        })
    };
    let mut tips = Vec::from_iter(known.map(|(_, tip)| (*tip).into()));
    tips.extend(program.map(StyledStr::from));
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        error.remove(ContextKind::SuggestedSubcommand);
    }
    error
}

/// Whether there is a program of this name on `$PATH`.
fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_name = !name.is_empty() && !name.contains('/');
    is_name && std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// Returns when help and usage errors have colours. Both are printed before `--color` is parsed.
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

/// Returns names and first lines of the visible commands, in the order of their declaration.
fn listed(command: &clap::Command) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .map(|c| {
            let about = c.get_about().map(ToString::to_string).unwrap_or_default();
            (c.get_name().to_owned(), about)
        })
        .collect();
    // clap adds `help` only when it parses.
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
    fn help_says_first_what_a_command_is_for() {
        let text = |name: &str| {
            let words = ["forebay", "help", name];
            command()
                .try_get_matches_from(words)
                .unwrap_err()
                .to_string()
        };
        let run = text("run");
        let lines: Vec<&str> = run.lines().collect();
        let at = |what: &str| {
            let found = lines
                .iter()
                .position(|line| line.trim_start().starts_with(what));
            found.unwrap_or_else(|| panic!("no {what} in:\n{run}"))
        };
        assert!(lines.len() < 110, "{} lines", lines.len());
        assert!(at("Example:") < 6 && at("Example:") < at("Staging:"));
        assert!(at("Staging:") < at("Media:") && at("Media:") < at("Nodes:"));
        assert_eq!(run.matches("--quiet").count(), 1);
        // CMD is listed under its own heading, not under the options of nodes.
        assert!(at("<CMD>...") > at("Program:"));
        for name in ["up", "stage", "exec", "df", "top"] {
            let text = text(name);
            let example = text.find("Example:").unwrap();
            assert!(
                example < text.find("-h, --help").or(text.find("--help")).unwrap(),
                "{text}"
            );
        }
    }

    #[test]
    fn commands_of_other_programs_get_a_tip() {
        let complaint = |words: &[&str]| {
            let error = command().try_get_matches_from(words).unwrap_err();
            with_tip(with_direction(error)).to_string()
        };
        for (word, tip) in [
            ("put", "forebay stage in SRC DST"),
            ("get", "forebay stage out SRC DST"),
            ("stat", "forebay ls -ld PATH"),
            ("tail", "forebay exec -- tail /fb/..."),
            ("touch", "forebay exec -- touch /fb/..."),
            ("stop", "forebay down"),
        ] {
            let text = complaint(&["forebay", word]);
            assert!(text.contains(tip), "{word}: {text}");
        }
        for word in REMOVED {
            let text = complaint(&["forebay", word, "-r", "/a", "/b"]);
            let tip = format!("'forebay exec -- {word} ...' does it, with all options of {word}");
            assert!(text.contains(&tip), "{word}: {text}");
        }
        // For a word that is nearly right, clap's own suggestion stays.
        let text = complaint(&["forebay", "statsu"]);
        assert!(text.contains("status"), "{text}");
        let text = complaint(&["forebay", "campaign", "get"]);
        assert!(!text.contains("stage out"), "{text}");
        let names: Vec<String> = listed(&Cli::command())
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        for (words, _) in TIPS {
            for word in words {
                assert!(!names.iter().any(|n| n == word), "{word} is a command");
            }
        }
    }

    #[test]
    fn a_pool_that_is_named_without_its_option_gets_a_tip() {
        let complaint = |words: &[&str]| {
            let error = command().try_get_matches_from(words).unwrap_err();
            with_tip(with_name(with_direction(error))).to_string()
        };
        for name in ["status", "down", "df", "up", "fsck", "stats"] {
            let text = complaint(&["forebay", name, "mine"]);
            assert!(text.contains("'--pool mine'"), "{text}");
        }
        let text = complaint(&["forebay", "exec", "-p", "x"]);
        assert!(text.contains("'--pool NAME'"), "{text}");
        let text = complaint(&["forebay", "stage", "in", "x"]);
        assert!(text.contains("both are needed"), "{text}");
        let text = complaint(&["forebay", "down", "--forse"]);
        assert!(
            text.contains("--force") && !text.contains("--pool"),
            "{text}"
        );
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
