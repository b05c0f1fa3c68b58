//! A parser for the XML of S3's replies: elements and their text.
//!
//! Guarantees: a truncated reply, or one that isn't XML, is an error, never a shorter list.
//! Attributes, comments, declarations and namespaces are skipped. Of entities, only XML's five and
//! numeric ones are known.

/// Maximum nesting of elements. S3's replies have five levels.
const DEEP: usize = 32;

/// An element.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Element {
    pub name: String,
    /// The element's own text, without that of its children.
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    /// Returns the children of this name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |c| c.name == name)
    }

    /// Returns the text of the first child of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.children
            .iter()
            .find(|c| c.name == name)
            .map(|c| c.text.as_str())
    }
}

/// Parses a document, and returns its root. None: the text is incomplete or isn't XML.
pub fn parse(text: &str) -> Option<Element> {
    let mut open: Vec<Element> = Vec::new();
    let mut rest = text.trim_start_matches('\u{feff}').trim();
    loop {
        let at = rest.find('<')?;
        let (before, tag) = rest.split_at(at);
        match open.last_mut() {
            Some(element) => element.text.push_str(&unescape(before)?),
            None if before.trim().is_empty() => {}
            None => return None,
        }
        if let Some(inner) = tag.strip_prefix("<![CDATA[") {
            let (data, after) = inner.split_once("]]>")?;
            open.last_mut()?.text.push_str(data);
            rest = after;
            continue;
        }
        let skipped = [("<!--", "-->"), ("<?", "?>"), ("<!", ">")];
        let skipped = skipped.iter().find(|(begin, _)| tag.starts_with(begin));
        if let Some((begin, end)) = skipped {
            rest = tag[begin.len()..].split_once(end)?.1;
            continue;
        }
        let (inner, after) = tag[1..].split_once('>')?;
        rest = after;
        let done = if let Some(name) = inner.strip_prefix('/') {
            let element = open.pop()?;
            if local(name.trim()) != element.name {
                return None;
            }
            element
        } else {
            let (inner, is_empty) = match inner.strip_suffix('/') {
                Some(inner) => (inner, true),
                None => (inner, false),
            };
            let name = local(inner.split_whitespace().next()?).to_owned();
            let element = Element {
                name,
                ..Element::default()
            };
            if !is_empty {
                if open.len() >= DEEP {
                    return None;
                }
                open.push(element);
                continue;
            }
            element
        };
        match open.last_mut() {
            Some(parent) => parent.children.push(done),
            None => return rest.trim().is_empty().then_some(done),
        }
    }
}

/// Returns a name without its namespace.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// Escapes text for an element.
pub fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let (name, after) = after.split_once(';')?;
        out.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => {
                let number = name.strip_prefix('#')?;
                let code = match number.strip_prefix('x') {
                    Some(digits) => u32::from_str_radix(digits, 16),
                    None => number.parse(),
                };
                char::from_u32(code.ok()?)?
            }
        });
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- c -->\
        <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
        <Prefix/><Contents><Key>a &amp; b &#228; &#xe4;</Key><Size>3</Size></Contents>\
        <Contents><Key><![CDATA[<x>]]></Key></Contents><x:IsTruncated>true</x:IsTruncated>\
        </ListBucketResult>\n";

    #[test]
    fn replies() {
        let root = parse(LIST).unwrap();
        assert_eq!(root.name, "ListBucketResult");
        let keys: Vec<_> = root.all("Contents").filter_map(|c| c.get("Key")).collect();
        assert_eq!(keys, ["a & b ä ä", "<x>"]);
        assert_eq!(root.get("IsTruncated"), Some("true"));
        assert_eq!(root.get("Prefix"), Some(""));
        assert_eq!(
            parse(&format!("<a>{}</a>", escape("<&>\"'"))).unwrap().text,
            "<&>\"'"
        );
    }

    #[test]
    fn what_is_cut_off_is_no_reply() {
        let text = LIST.trim_end();
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            assert_eq!(parse(&text[..end]), None, "{}", &text[..end]);
        }
        let deep = "<a>".repeat(100) + &"</a>".repeat(100);
        for bad in [
            "",
            "x",
            "<html>",
            "<a></b>",
            "<a>&x;</a>",
            "<a/><b/>",
            "x<a/>",
            &deep,
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn noise_does_no_harm() {
        forebay_fuzz::run("replies", |random| {
            let mut bytes = LIST.as_bytes().to_vec();
            random.mutate(&mut bytes, LIST.as_bytes());
            let _ = parse(&String::from_utf8_lossy(&bytes));
        });
    }
}
