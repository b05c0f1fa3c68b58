//! Conversion of dates of S3 (text, UTC) from and to nanoseconds since 1970.

/// Returns the number of days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // This calculation's years begin in March, so that the leap day is a year's last day.
    let y = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = y.div_euclid(400);
    let of_era =
        y.rem_euclid(400) * 365 + y.rem_euclid(400) / 4 - y.rem_euclid(400) / 100 + of_year;
    era * 146_097 + of_era - 719_468
}

/// Formats seconds since 1970 as `20130524T000000Z`.
pub fn basic(seconds: i64) -> String {
    let day = seconds.div_euclid(86_400) + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let of_400 = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * of_400 + of_400 / 4 - of_400 / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = of_400 + era * 400 + i64::from(month <= 2);
    let s = seconds.rem_euclid(86_400);
    format!(
        "{year:04}{month:02}{date:02}T{:02}{:02}{:02}Z",
        s / 3600,
        s / 60 % 60,
        s % 60
    )
}

fn number(text: Option<&str>) -> Option<i64> {
    let text = text?;
    let plain = !text.is_empty() && text.len() < 10 && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn clock(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let (h, m, s) = (
        number(parts.next())?,
        number(parts.next())?,
        number(parts.next())?,
    );
    Some(h * 3600 + m * 60 + s)
}

/// Parses `Fri, 24 May 2013 00:00:00 GMT`. Returns nanoseconds since 1970.
pub fn from_header(text: &str) -> Option<i128> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut words = text.split_once(", ")?.1.split(' ');
    let (day, month) = (number(words.next())?, words.next()?);
    let (year, time) = (number(words.next())?, clock(words.next()?)?);
    let month = MONTHS
        .find(month)
        .filter(|at| at % 3 == 0 && month.len() == 3)? as i64
        / 3
        + 1;
    Some(i128::from(days(year, month, day) * 86_400 + time) * 1_000_000_000)
}

/// Parses `2013-05-24T00:00:00.000Z`. Returns nanoseconds since 1970, without the fraction of a
/// second, because dates in headers have none.
pub fn from_list(text: &str) -> Option<i128> {
    let (date, time) = text.trim_end_matches('Z').split_once('T')?;
    let mut parts = date.split('-').map(|part| number(Some(part)));
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let time = clock(time.split('.').next()?)?;
    Some(i128::from(days(year, month, day) * 86_400 + time) * 1_000_000_000)
}

/// Parses seconds since 1970, with an optional fraction: `1369353600.5`. Returns nanoseconds.
pub fn from_seconds(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let (sign, whole) = match whole.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, whole),
    };
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let whole: i128 = whole.parse::<i64>().ok()?.into();
    let fraction: i128 = fraction.parse().ok()?;
    Some(sign * (whole * 1_000_000_000 + fraction))
}

/// Formats nanoseconds since 1970 as seconds with nine decimal places.
pub fn to_seconds(ns: i128) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    let ns = ns.unsigned_abs();
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(basic(1_369_353_600), "20130524T000000Z");
        assert_eq!(basic(0), "19700101T000000Z");
        assert_eq!(basic(951_827_696), "20000229T123456Z");
        assert_eq!(basic(4_102_444_799), "20991231T235959Z");
        let at = from_header("Tue, 29 Feb 2000 12:34:56 GMT");
        assert_eq!(at, Some(951_827_696_000_000_000));
        assert_eq!(from_list("2000-02-29T12:34:56.789Z"), at);
        assert_eq!(from_list("2000-02-29T12:34:56Z"), at);
        for bad in ["", "2000-02-29", "2000-02T12:34:56Z", "x-y-zTa:b:c"] {
            assert_eq!(from_list(bad), None);
        }
        for bad in [
            "",
            "x",
            "Tue, 29 Fe 2000 12:34:56 GMT",
            "Tue, 29 ebM 2000 12:34:56 GMT",
        ] {
            assert_eq!(from_header(bad), None);
        }
    }

    #[test]
    fn seconds() {
        for ns in [0, 1, -1, 1_600_000_000_123_456_789, -5_000_000_001] {
            assert_eq!(from_seconds(&to_seconds(ns)), Some(ns));
        }
        assert_eq!(from_seconds("12"), Some(12_000_000_000));
        assert_eq!(from_seconds("12.5"), Some(12_500_000_000));
        for bad in ["", ".5", "x", "1.x", "1.2.3", "99999999999999999999", "--1"] {
            assert_eq!(from_seconds(bad), None, "{bad}");
        }
    }
}
