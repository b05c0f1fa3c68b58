//! Predicates: their meaning, error messages, and that no input makes the parser panic.

use forebay_fuzz::Random;
use forebay_iov::{Meta, Predicate, Term};
use forebay_store::record::Order;

fn meta(pairs: &[(&str, &str)]) -> Meta {
    pairs
        .iter()
        .map(|(k, v)| ((*k).into(), (*v).into()))
        .collect()
}

fn holds(text: &str, pairs: &[(&str, &str)]) -> bool {
    Predicate::parse(text).unwrap().holds(&meta(pairs))
}

#[test]
fn what_predicates_mean() {
    let m = [("project", "mcse"), ("step", "10"), ("x", "2.5")];
    for yes in [
        "",
        "  ",
        r#"project = "mcse""#,
        r#"project = "mcse" and step >= 2"#,
        r#"project="mcse"and step>=2"#,
        "step > 9",
        "step = 10 and step = 10.0 and step = 1e1 and step <= 10",
        r#"step < "9""#,
        "x > 2 and x < 3 and x != 2",
        r#"project = "no" or step = 10"#,
        r#"project = "mcse" or project = "a" and project = "b""#,
        r#"(project = "no" or step = 10) and exists x"#,
        "not exists y",
        "not y = 1",
        "not not exists x",
        "`step` = 10",
    ] {
        assert!(holds(yes, &m), "{yes}");
    }
    for no in [
        r#"project = "MCSE""#,
        "step > 10",
        "project > 0",
        "project < 0",
        "y != 1",
        r#"(project = "mcse" or step = 1) and step = 2"#,
        "not step = 10",
        r#"step = "10.0""#,
    ] {
        assert!(!holds(no, &m), "{no}");
    }
    // A number with more digits than a double has, and texts that only look like numbers.
    let m = [
        ("n", "9007199254740993"),
        ("i", "inf"),
        ("h", "0x10"),
        ("e", ""),
    ];
    assert!(holds("n > 9007199254740992", &m) && !holds("n > 9007199254740993.5", &m));
    assert!(holds("n < 9007199254740994.0 and n > -1e300", &m));
    assert!(!holds("i > 0", &m) && !holds("h >= 0", &m) && !holds("e >= 0 or e < 0", &m));
    assert!(holds(r#"e = """#, &m));
    assert!(holds(
        r#"q = "a\"b\\c" and `odd key!` = 1"#,
        &[("q", r#"a"b\c"#), ("odd key!", "1")]
    ));
    assert!(holds("z = 0 and z = 0.0", &[("z", "-0.0")]));
}

#[test]
fn predicates_have_a_longest_and_a_deepest() {
    let long = |n: usize| Predicate::parse(&format!("key = \"{}\"", "v".repeat(n)));
    assert!(long(60_000).is_ok());
    assert!(long(64 << 10).is_err());
    let deep = |n: usize| Predicate::parse(&format!("{}a = 1{}", "(".repeat(n), ")".repeat(n)));
    assert!(deep(60).is_ok());
    assert!(deep(65).is_err());
}

#[test]
fn errors_name_the_column() {
    for (text, column, word) in [
        ("step", 5, "expected =,"),
        ("step = ", 8, "expected a number"),
        ("step = mcse", 8, "expected a number"),
        ("= 3", 1, "expected a key"),
        ("step = 3 step = 4", 10, "'and', 'or'"),
        ("(step = 3", 10, "')'"),
        ("step = 3)", 9, "the end"),
        ("step = 3 and", 13, "expected a key"),
        ("exists 3", 8, "expected a key"),
        ("step = 3x", 8, "'3x' is no number"),
        (r#"a = "b"#, 5, "isn't closed"),
        (r#"a = "b\n""#, 7, "backslash"),
        ("`a = 3", 1, "backquote"),
        ("größe = 1 & 2", 11, "'&' has no meaning"),
        ("not", 4, "expected a key"),
    ] {
        let error = Predicate::parse(text).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("column {column} of ")) && error.contains(word),
            "{text}: {error}"
        );
    }
    let deep = "(".repeat(100_000);
    assert!(Predicate::parse(&deep).is_err());
    let deep = format!("{}a = 1", "not ".repeat(65));
    assert!(
        Predicate::parse(&deep)
            .unwrap_err()
            .to_string()
            .contains("inside")
    );
    assert!(Predicate::parse(&format!("{}a = 1", "not ".repeat(63))).is_ok());
    let wide = vec!["a = 1"; 1000].join(" or ");
    assert!(Predicate::parse(&wide).is_ok());
}

#[test]
fn what_an_index_is_asked() {
    let number = |text: &str| Order::of_value(text.as_bytes());
    let in_words = |term: &Term| match term {
        Term::Equal(key, value) => {
            let [key, value] = [key, value].map(|b| String::from_utf8_lossy(b));
            format!("{key}={value}")
        }
        Term::Within(key, low, high) => {
            let key = String::from_utf8_lossy(key);
            let ends = [
                (Order::FIRST_NUMBER, "-"),
                (Order::LAST_NUMBER, "+"),
                (Order::FIRST_TEXT, "''"),
                (Order::LAST, "*"),
                (number("2"), "2"),
                (number("3"), "3"),
                (Order::of_text("m"), "m"),
            ];
            let end = |at| ends.iter().find(|(end, _)| *end == at).unwrap().1;
            format!("{key}[{},{}]", end(*low), end(*high))
        }
    };
    let plan = |text: &str| {
        let plan = Predicate::parse(text).unwrap().plan()?;
        let all = |terms: &Vec<Term>| terms.iter().map(in_words).collect::<Vec<_>>().join("&");
        Some(plan.iter().map(all).collect::<Vec<_>>().join(" "))
    };
    let of = |text: &str| plan(text).unwrap();
    assert_eq!(of(r#"a = "x" and b > 2 and c = "y""#), "a=x&b[2,+]&c=y");
    assert_eq!(of(r#"a = "x" or b = 2"#), "a=x b[2,2]");
    assert_eq!(of("b >= 2 and b < 3 and b != 2"), "b[2,3]");
    assert_eq!(of("b > 3 and b < 2"), "");
    assert_eq!(of(r#"a = "x" and a = "y""#), "");
    assert_eq!(of(r#"b > "m""#), "b[-,+] b[m,*]");
    assert_eq!(of(r#"b > "m" and b < "m""#), "b[-,+] b[m,m]");
    assert_eq!(of(r#"b <= "m" and b < 3"#), "b[-,3]");
    assert_eq!(
        of("(exists b or exists c) and a < 3"),
        "a[-,3]&b[-,*] a[-,3]&c[-,*]"
    );
    assert_eq!(of(r#"not a = "x" and exists b"#), "b[-,*]");
    // The plan has at most 16 conjunctions, however many factors are multiplied.
    let many = vec!["(a = 2 or b = 2 or c = 2)"; 20].join(" and ");
    assert!(Predicate::parse(&many).unwrap().plan().unwrap().len() <= 16);
    assert_eq!(plan(r#"not a = "x""#), None);
    assert_eq!(plan(r#"a = "x" or not b = 2"#), None);
    assert_eq!(plan(""), None);
}

/// Returns metadata with few different keys and values, so that predicates often match.
fn some_meta(random: &mut Random) -> Meta {
    let value = |random: &mut Random| *random.one_of(&["1", "2", "10", "x", "", "2.5", "-1"]);
    let mut meta = Meta::new();
    for key in ["a", "b", "c"] {
        if !random.once_in(3) {
            meta.insert(key.into(), value(random).into());
        }
    }
    meta
}

fn some_predicate(random: &mut Random, depth: usize) -> String {
    let key = *random.one_of(&["a", "b", "`c`"]);
    let inner = |random: &mut Random| some_predicate(random, depth + 1);
    match random.below(if depth > 3 { 4 } else { 8 }) {
        0 => format!("exists {key}"),
        1..4 => {
            let sign = *random.one_of(&["=", "!=", "<", "<=", ">", ">="]);
            let value = *random.one_of(&["1", "2.0", "10", "\"x\"", "\"\"", "\"2\"", "-1e0"]);
            format!("{key} {sign} {value}")
        }
        4 => format!("not {}", inner(random)),
        5 => format!("({})", inner(random)),
        6 => format!("{} and {}", inner(random), inner(random)),
        _ => format!("{} or {}", inner(random), inner(random)),
    }
}

#[test]
fn random_predicates_are_read_written_and_planned_alike() {
    forebay_fuzz::run("predicates", |random| {
        let text = some_predicate(random, 0);
        let predicate = Predicate::parse(&text).unwrap();
        let again = Predicate::parse(&predicate.to_string()).unwrap();
        let plan = predicate.plan();
        for _ in 0..20 {
            let meta = some_meta(random);
            let holds = predicate.holds(&meta);
            assert_eq!(again.holds(&meta), holds, "{text}");
            // The plan covers every match.
            if let (true, Some(plan)) = (holds, &plan) {
                let of = |key: &[u8]| meta.get(std::str::from_utf8(key).unwrap());
                let is = |term: &Term| match term {
                    Term::Equal(key, value) => of(key).is_some_and(|v| v.as_bytes() == value),
                    Term::Within(key, low, high) => of(key).is_some_and(|v| {
                        let at = Order::of_value(v.as_bytes());
                        *low <= at && at <= *high
                    }),
                };
                let found = plan.iter().any(|terms| terms.iter().all(is));
                assert!(found, "{text} {meta:?}");
            }
        }
        // A damaged text is refused or parsed, without a panic.
        let mut bytes = text.into_bytes();
        let other = some_predicate(random, 0);
        random.mutate(&mut bytes, other.as_bytes());
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(predicate) = Predicate::parse(&text) {
            let again = Predicate::parse(&predicate.to_string()).unwrap();
            let meta = some_meta(random);
            assert_eq!(again.holds(&meta), predicate.holds(&meta));
        }
    });
}
