//! `forebay completions` and `man`: generated from the definition of the command line, so that they
//! always agree with it.

use crate::fail::Fail;
use crate::help;
use crate::output::write;
use clap_complete::Shell;
use std::path::Path;

/// Prints the completion script of a shell.
pub fn completions(shell: Shell) -> Result<u8, Fail> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut help::command(), "forebay", &mut text);
    write(&text)?;
    Ok(0)
}

/// Writes a man page for each command into a directory, which is created.
pub fn man(dir: &Path) -> Result<u8, Fail> {
    // The page of a command is its help, so `forebay help ls` needs no page.
    let command = without_help(help::command());
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .map_err(|e| Fail::failed(format!("{}: can't write man pages: {e}", dir.display())))?;
    Ok(0)
}

fn without_help(command: clap::Command) -> clap::Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_is_completed() {
        let dir = std::env::temp_dir().join(format!("forebay-man-{}", std::process::id()));
        man(&dir).unwrap();
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut help::command(), "forebay", &mut script);
        let script = String::from_utf8(script).unwrap();
        for c in help::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let page = std::fs::read_to_string(dir.join(format!("forebay-{}.1", c.get_name())));
            assert!(page.unwrap().contains("Example:"), "{}", c.get_name());
            assert!(script.contains(c.get_name()));
        }
        assert!(!dir.join("forebay-keeper.1").exists());
        assert!(!dir.join("forebay-help.1").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
