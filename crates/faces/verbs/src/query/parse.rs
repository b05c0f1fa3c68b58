//! Parser of predicates: tokens, then recursive descent. Errors name the column, counted in
//! characters from 1.

use super::{Number, Operator, Predicate, Value};
use crate::{Error, Result};

/// Maximum nesting depth of parentheses and `not`.
const DEPTH: usize = 64;
/// Maximum length of a predicate's text. Bytes.
const LENGTH: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq)]
enum Word {
    Open,
    Close,
    And,
    Or,
    Not,
    Exists,
    Key(String),
    Operator(Operator),
    Value(Value),
    End,
}

struct Reader<'a> {
    text: &'a str,
    /// Offset of the unread text. Bytes.
    at: usize,
    /// The next token, and in `begins` its offset in bytes.
    next: Word,
    begins: usize,
    depth: usize,
}

pub(super) fn parse(text: &str) -> Result<Predicate> {
    if text.len() > LENGTH {
        return Err(Error::invalid(format!(
            "a predicate of {} bytes; {LENGTH} are the most",
            text.len()
        )));
    }
    let mut reader = Reader {
        text,
        at: 0,
        next: Word::End,
        begins: 0,
        depth: 0,
    };
    reader.advance()?;
    if reader.next == Word::End {
        return Ok(Predicate::everything());
    }
    let predicate = reader.any()?;
    match reader.next {
        Word::End => Ok(predicate),
        _ => Err(reader.expected("'and', 'or' or the end")),
    }
}

impl Reader<'_> {
    fn error(&self, at: usize, what: &str) -> Error {
        let column = self.text[..at].chars().count() + 1;
        Error::invalid(format!("column {column} of '{}': {what}", self.text))
    }

    fn expected(&self, what: &str) -> Error {
        self.error(self.begins, &format!("expected {what}"))
    }

    /// Returns the token in `next`, and reads the following token into `next`.
    fn advance(&mut self) -> Result<Word> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.begins = self.at + rest.len() - trimmed.len();
        let (word, len) = self.word(trimmed)?;
        self.at = self.begins + len;
        Ok(std::mem::replace(&mut self.next, word))
    }

    /// Returns the token at the beginning of `rest`, and its length in bytes.
    fn word(&self, rest: &str) -> Result<(Word, usize)> {
        let Some(first) = rest.chars().next() else {
            return Ok((Word::End, 0));
        };
        let signs = [
            ("(", Word::Open),
            (")", Word::Close),
            ("!=", Word::Operator(Operator::Unequal)),
            ("<=", Word::Operator(Operator::AtMost)),
            (">=", Word::Operator(Operator::AtLeast)),
            ("=", Word::Operator(Operator::Equal)),
            ("<", Word::Operator(Operator::Less)),
            (">", Word::Operator(Operator::Greater)),
        ];
        for (sign, word) in signs {
            if rest.starts_with(sign) {
                return Ok((word, sign.len()));
            }
        }
        let until = |stop: &dyn Fn(char) -> bool| rest.find(stop).unwrap_or(rest.len());
        match first {
            '"' => self.text(rest),
            '`' => match rest[1..].find('`') {
                Some(0) => Err(self.error(self.begins, "a key without characters")),
                Some(len) => Ok((Word::Key(rest[1..=len].into()), len + 2)),
                None => Err(self.error(self.begins, "a backquote that isn't closed")),
            },
            '0'..='9' | '-' | '+' | '.' => {
                let len = until(&|c| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
                match Number::read(&rest[..len]) {
                    Some(n) => Ok((Word::Value(Value::Number(n)), len)),
                    None => {
                        let what = format!("'{}' is no number", &rest[..len]);
                        Err(self.error(self.begins, &what))
                    }
                }
            }
            c if c.is_alphabetic() || c == '_' => {
                let len = until(&|c| !c.is_alphanumeric() && !"_.-:".contains(c));
                let word = match &rest[..len] {
                    "and" => Word::And,
                    "or" => Word::Or,
                    "not" => Word::Not,
                    "exists" => Word::Exists,
                    key => Word::Key(key.into()),
                };
                Ok((word, len))
            }
            c => Err(self.error(self.begins, &format!("'{c}' has no meaning here"))),
        }
    }

    fn text(&self, rest: &str) -> Result<(Word, usize)> {
        let mut text = String::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return Ok((Word::Value(Value::Text(text)), at + 1)),
                '\\' => match chars.next() {
                    Some((_, c @ ('"' | '\\'))) => text.push(c),
                    _ => {
                        let what = "only \\\" and \\\\ can follow a backslash";
                        return Err(self.error(self.begins + at, what));
                    }
                },
                c => text.push(c),
            }
        }
        Err(self.error(self.begins, "a text that isn't closed by '\"'"))
    }

    fn any(&mut self) -> Result<Predicate> {
        let mut any = vec![self.all()?];
        while self.next == Word::Or {
            self.advance()?;
            any.push(self.all()?);
        }
        Ok(match any.len() {
            1 => any.remove(0),
            _ => Predicate::Any(any),
        })
    }

    fn all(&mut self) -> Result<Predicate> {
        let mut all = vec![self.one()?];
        while self.next == Word::And {
            self.advance()?;
            all.push(self.one()?);
        }
        Ok(match all.len() {
            1 => all.remove(0),
            _ => Predicate::All(all),
        })
    }

    fn one(&mut self) -> Result<Predicate> {
        let begins = self.begins;
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(self.error(begins, &format!("more than {DEPTH} inside each other")));
        }
        let what = "a key, 'not', 'exists' or '('";
        if !matches!(
            self.next,
            Word::Not | Word::Open | Word::Exists | Word::Key(_)
        ) {
            return Err(self.expected(what));
        }
        let one = match self.advance()? {
            Word::Not => Predicate::Not(Box::new(self.one()?)),
            Word::Open => {
                let inner = self.any()?;
                if self.next != Word::Close {
                    return Err(self.expected("'and', 'or' or ')'"));
                }
                self.advance()?;
                inner
            }
            Word::Exists => Predicate::Exists(self.key()?),
            Word::Key(key) => self.comparison(key)?,
            _ => return Err(self.error(begins, &format!("expected {what}"))),
        };
        self.depth -= 1;
        Ok(one)
    }

    fn key(&mut self) -> Result<String> {
        match &self.next {
            Word::Key(key) => {
                let key = key.clone();
                self.advance()?;
                Ok(key)
            }
            _ => Err(self.expected("a key")),
        }
    }

    fn comparison(&mut self, key: String) -> Result<Predicate> {
        let Word::Operator(operator) = self.next else {
            return Err(self.expected("=, !=, <, <=, > or >="));
        };
        self.advance()?;
        let Word::Value(value) = &self.next else {
            return Err(self.expected("a number, or a text in '\"'"));
        };
        let value = value.clone();
        self.advance()?;
        Ok(Predicate::Compare(key, operator, value))
    }
}
