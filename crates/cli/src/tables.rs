//! Formats a pool's media and tables, for people and for programs.

use forebay_client::MediumUsage;
use forebay_media::format_size;
use forebay_store::{Store, Table};
use serde_json::{Value, json as value};
use std::fmt::Write;

/// Returns a medium as JSON.
pub fn medium(u: &MediumUsage) -> Value {
    value!({ "medium": u.spec.to_string(), "capacity": u.capacity, "used": u.used,
             "reserved": u.reserved, "reserve": u.reserve, "available": u.available })
}

/// Formats the used share of a capacity in percent, rounded up as df does.
pub fn percent(used: u64, capacity: u64) -> String {
    match capacity {
        0 => "-".into(),
        _ => format!(
            "{}%",
            (u128::from(used) * 100).div_ceil(u128::from(capacity))
        ),
    }
}

/// Formats rows with aligned columns: the columns in `left` left-aligned, the others right-aligned.
pub fn table(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|s| s.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let w = widths[c];
            let _ = if left.contains(&c) {
                write!(line, "{cell:<w$}  ")
            } else {
                write!(line, "{cell:>w$}  ")
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats media in the form of df(1).
pub fn df_table(usage: &[MediumUsage], mount: &str) -> String {
    let mut rows = vec![
        ["Medium", "Size", "Used", "Avail", "Use%", "Mounted on"]
            .map(String::from)
            .to_vec(),
    ];
    for u in usage {
        rows.push(vec![
            u.spec.to_string(),
            format_size(u.capacity),
            format_size(u.used),
            format_size(u.available),
            percent(u.used, u.capacity),
            mount.to_owned(),
        ]);
    }
    table(&rows, &[0, 5])
}

/// Returns the tables that all processes of a node share, as JSON.
pub fn tables(store: &Store) -> Value {
    let one = |t: &Table| value!({ "table": t.name, "used": t.used, "limit": t.limit, "refused": t.refused });
    forebay_store::tables::all(store.control())
        .iter()
        .map(one)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let rows = [["a", "10"], ["bcd", "5"]].map(|r| r.map(String::from).to_vec());
        assert_eq!(table(&rows, &[0]), "a    10\nbcd   5\n");
        assert_eq!(percent(1, 1000), "1%");
        assert_eq!(percent(0, 0), "-");
    }
}
