//! The web page: files that are compiled into the program.

use crate::http::{Body, Reply};

/// Returns the file at a path, if it is part of the web page.
pub fn find(path: &[String]) -> Option<Reply> {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let (kind, text) = match parts[..] {
        [""] => (
            "text/html; charset=utf-8",
            include_str!("../page/index.html"),
        ),
        ["flow.css"] => ("text/css; charset=utf-8", include_str!("../page/flow.css")),
        ["flow.js"] => (
            "text/javascript; charset=utf-8",
            include_str!("../page/flow.js"),
        ),
        // Browsers request this icon, which is empty.
        ["favicon.ico"] => ("image/x-icon", ""),
        _ => return None,
    };
    Some(Reply {
        status: 200,
        kind,
        fields: Vec::new(),
        body: Body::Bytes(text.as_bytes().to_vec()),
    })
}
