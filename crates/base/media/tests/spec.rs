//! Tests that any text is parsed as a medium or a size, or gives an error, and that a formatted
//! medium is parsed to the same medium.

use forebay_media::{MediumSpec, format_size, parse_size};

const WORDS: [&str; 24] = [
    "memory",
    "files",
    ":",
    "/",
    "/a",
    "4",
    "G",
    "K",
    "M",
    "T",
    "iB",
    "B",
    "-",
    "+",
    ".",
    "1e9",
    "inf",
    "nan",
    " ",
    "é",
    "Ｋ",
    "\0",
    "18446744073709551616",
    "0",
];

#[test]
fn any_text_is_a_medium_or_an_error() {
    forebay_fuzz::run("media and sizes", |r| {
        let text: String = (0..r.below(8)).map(|_| *r.one_of(&WORDS)).collect();
        if let Ok(bytes) = parse_size(&text) {
            assert!(bytes < 1 << 50, "{text}");
            format_size(bytes);
        }
        if let Ok(medium) = text.parse::<MediumSpec>() {
            assert!(medium.capacity >= 1 << 20 && medium.capacity.is_multiple_of(1 << 20));
            assert_eq!(medium.to_string().parse(), Ok(medium), "{text}");
        }
        // A whole number of bytes of any magnitude is parsed exactly.
        let n = r.number() >> 14 >> r.below(50);
        assert_eq!(parse_size(&n.to_string()), Ok(n));
    });
}
