//! The web page: three files that are part of the program.

use crate::http::{Body, Reply};

/// The file at a path of the service, if it is one of the page's.
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
        // Browsers request it, and there is none.
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
