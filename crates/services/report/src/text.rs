//! Numbers and texts in the formats of reports: units, HTML, TOML, shell.

/// Formats a number of bytes, in binary units with three digits, or fewer for a whole number of
/// units.
pub fn bytes(n: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut n, mut unit) = (n, 0);
    while n >= 1000.0 && unit + 1 < UNITS.len() {
        n /= 1024.0;
        unit += 1;
    }
    format!(
        "{} {}",
        digits(n, n.fract() == 0.0 || unit == 0),
        UNITS[unit]
    )
}

fn digits(n: f64, whole: bool) -> String {
    match n {
        _ if whole => format!("{n:.0}"),
        n if n < 10.0 => format!("{n:.2}"),
        n if n < 100.0 => format!("{n:.1}"),
        n => format!("{n:.0}"),
    }
}

/// Formats a duration, given in nanoseconds.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{} µs", digits(n / 1e3, false)),
        n if n < 1e9 => format!("{} ms", digits(n / 1e6, false)),
        n if n < 600e9 => format!("{} s", digits(n / 1e9, false)),
        n if n < 36_000e9 => format!("{} min", digits(n / 60e9, false)),
        n => format!("{} h", digits(n / 3600e9, false)),
    }
}

/// Formats a duration in the unit that [`time`] uses for `of`, a longer duration.
pub fn part_of_time(nanoseconds: f64, of: f64) -> String {
    let whole = time(of);
    let unit = whole.split(' ').next_back().unwrap_or_default();
    let length = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "min" => 60e9,
        _ => 3600e9,
    };
    format!("{} {unit}", digits(nanoseconds / length, unit == "ns"))
}

/// Removes the middle of a long text. The result has at most `most` characters, one of them `…`.
pub fn shortened(text: &str, most: usize) -> String {
    let all: Vec<char> = text.chars().collect();
    if all.len() <= most {
        return text.to_owned();
    }
    let end = most / 2;
    let mut short: String = all[..most.saturating_sub(end + 1)].iter().collect();
    short.push('…');
    short.extend(&all[all.len() - end..]);
    short
}

/// Formats a count with commas.
pub fn count(n: u64) -> String {
    let plain = n.to_string();
    let mut text = String::with_capacity(plain.len() * 4 / 3);
    for (i, digit) in plain.chars().enumerate() {
        if i > 0 && (plain.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things, in the singular or the plural.
pub fn several(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// Formats the time that all processes spent in I/O, relative to the duration of the run. Both are
/// in nanoseconds.
pub fn share_of_run(spent: f64, run: f64) -> String {
    let share = spent / run.max(1.0);
    if share <= 1.0 {
        format!("{} of the run's {}", percent(share), time(run))
    } else {
        format!(
            "on average {share:.1} processes at a time, in the run's {}",
            time(run)
        )
    }
}

/// Formats a share (0 to 1) as a percentage.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        p if p > 0.0 && p < 0.1 => "< 0.1 %".into(),
        p if p < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Formats nanoseconds since 1970 as `2026-03-01 12:00:00 UTC`.
pub fn moment(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [
        31,
        28 + u64::from(is_leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    format!(
        "{year:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC",
        month + 1,
        days + 1,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Escapes text for HTML elements and quoted attributes. Invisible characters, and those that
/// change the direction of text, become `\u{...}`.
pub fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c if is_unseen(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

/// Escapes text for a terminal: invisible characters become `\u{...}`.
pub fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unseen(c) || c == '\n' {
            safe.extend(c.escape_unicode())
        } else {
            safe.push(c)
        }
    }
    safe
}

fn is_unseen(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Escapes JSON for a `script` element of a page. The result has no `<`, so that no text ends the
/// element, and no invisible characters.
pub fn json_in_html(json: &str) -> String {
    // These characters occur only in JSON strings, where the escape stands for the same character.
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '<' || is_unseen(c) {
            safe.push_str(&format!("\\u{:04x}", c as u32))
        } else {
            safe.push(c)
        }
    }
    safe
}

/// Formats a string of TOML.
pub fn toml(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Quotes a word for a shell, if necessary.
pub fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,%@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_units() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1536.0), "1.50 KiB");
        assert_eq!(bytes(47.0 * 1024.0 * 1024.0), "47 MiB");
        assert_eq!(bytes(47_008.0), "45.9 KiB");
        assert_eq!(time(1500.0), "1.50 µs");
        assert_eq!(time(12e9), "12.0 s");
        assert_eq!(time(1800e9), "30.0 min");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(12), "12");
        assert_eq!(part_of_time(0.568e9, 1.136e9), "0.57 s");
        assert_eq!(part_of_time(50.0, 100.0), "50 ns");
        assert_eq!(shortened("/a/long/path.dat", 16), "/a/long/path.dat");
        assert_eq!(shortened("/a/longer/path.dat", 9), "/a/l….dat");
        assert_eq!(percent(0.123), "12 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(moment(1_709_208_000_000_000_000), "2024-02-29 12:00:00 UTC");
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
    }

    #[test]
    fn texts_are_quoted() {
        assert_eq!(
            html("<a b='c'>&\u{202e}\0"),
            "&lt;a b=&#39;c&#39;&gt;&amp;\\u{202e}\\u{0}"
        );
        assert_eq!(
            json_in_html("\"</script><!--\""),
            "\"\\u003c/script>\\u003c!--\""
        );
        assert_eq!(shell("it's"), "'it'\\''s'");
        assert_eq!(shell("/a/b-1.h5"), "/a/b-1.h5");
        let odd = "a\"b\\c\n\u{7f}ä";
        let table = format!("x = {}", toml(odd));
        let table = toml::de::DeTable::parse(&table).unwrap();
        let x = table.get_ref().get("x").unwrap().get_ref();
        assert_eq!(x.as_str(), Some(odd));
    }
}
