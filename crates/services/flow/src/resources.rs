//! The campaigns that the rules of a Snakefile request: `resources: campaign="100TB,scratch,2d"`.
//!
//! Only texts that are literally in the file are found. A Snakefile is a program, so values that it
//! computes, and those of included files, are known only to Snakemake.

use std::collections::BTreeSet;

/// Returns the distinct values of `campaign` in the `resources` of rules, sorted.
pub fn campaigns(snakefile: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    // Indentation of the `resources:` section that contains the current line.
    let mut inside: Option<usize> = None;
    for line in snakefile.lines() {
        let text = line.trim_start();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let indent = line.len() - text.len();
        if inside.is_some_and(|of| indent <= of) {
            inside = None;
        }
        let values = match text.strip_prefix("resources:") {
            Some(rest) => {
                inside = Some(indent);
                rest
            }
            None if inside.is_some() => text,
            None => continue,
        };
        found.extend(campaign(values));
    }
    found.into_iter().collect()
}

/// Returns the value of `campaign` in a line of resources.
fn campaign(line: &str) -> Option<String> {
    let mut from = 0;
    loop {
        let at = from + line[from..].find("campaign")?;
        from = at + "campaign".len();
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        if line[..at].ends_with(is_name) {
            continue;
        }
        let value = line[from..].trim_start();
        let Some(value) = value.strip_prefix('=').or(value.strip_prefix(':')) else {
            continue;
        };
        let value = value.trim_start();
        let quote = value.chars().next().filter(|c| "'\"".contains(*c))?;
        let (text, _) = value[1..].split_once(quote)?;
        return Some(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_rules() {
        let snakefile = r#"
# resources: campaign="1T,comment,1d"
rule bwa_map:
    input: "a"
    resources:
        mem_mb=100,
        campaign = "100TB,10000files,scratch,2d"
    shell: "x campaign='none'"
rule b:
    resources: campaign='1GB,home,1d', other=1
    params: campaign="no,resource"
rule c:
    resources: my_campaign="no", campaign=function
rule d:
    resources:
        campaign="100TB,10000files,scratch,2d"
"#;
        assert_eq!(
            campaigns(snakefile),
            ["100TB,10000files,scratch,2d", "1GB,home,1d"]
        );
        assert!(campaigns("rule a:\n  output: 'resources: x'\n").is_empty());
        assert!(campaigns("resources: campaign=\"unfinished").is_empty());
    }
}
