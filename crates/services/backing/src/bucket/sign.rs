//! Signatures of requests: AWS Signature Version 4, which includes the payload's SHA-256.
//!
//! So a server that checks signatures also checks the body, and refuses bytes that were damaged on
//! the network.

use crate::bucket::secret::Credentials;
use crate::bucket::time;
use ring::{digest, hmac};

/// A request in the form for signing. Header names are in lower case.
pub struct Unsigned<'a> {
    pub method: &'a str,
    /// URL-encoded, as it is sent.
    pub path: &'a str,
    /// URL-encoded, and sorted by name.
    pub query: &'a str,
    /// All headers to be signed, including `host`.
    pub headers: &'a [(String, String)],
    /// SHA-256 of the body, in hexadecimal digits.
    pub payload: &'a str,
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the SHA-256 of bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    sum
}

/// URL-encodes bytes: all except unreserved characters, and slashes only if `slashes`.
pub fn encode(bytes: &[u8], slashes: bool) -> String {
    let mut text = String::with_capacity(bytes.len() + 16);
    for &b in bytes {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(b));
            }
            b'/' if slashes => text.push('/'),
            _ => text.push_str(&format!("%{b:02X}")),
        }
    }
    text
}

/// Returns the value of the header `authorization`. `now`: the time in the request's `x-amz-date`,
/// in seconds since 1970.
pub fn authorization(
    request: &Unsigned<'_>,
    credentials: &Credentials,
    region: &str,
    now: i64,
) -> String {
    let mut headers: Vec<_> = request.headers.iter().collect();
    headers.sort();
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{}\n", value.trim()))
        .collect();
    let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(";");
    let Unsigned {
        method,
        path,
        query,
        payload,
        ..
    } = request;
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{payload}");
    let stamp = time::basic(now);
    let scope = format!("{}/{region}/s3/aws4_request", &stamp[..8]);
    let canonical = hex(&sha256(canonical.as_bytes()));
    let to_sign = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{canonical}");
    let secret = zeroize::Zeroizing::new(format!("AWS4{}", credentials.secret.expose()));
    let mut key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    for part in [&stamp[..8], region, "s3", "aws4_request"] {
        let next = hmac::sign(&key, part.as_bytes());
        key = hmac::Key::new(hmac::HMAC_SHA256, next.as_ref());
    }
    let signature = hex(hmac::sign(&key, to_sign.as_bytes()).as_ref());
    let id = credentials.id.expose();
    format!("AWS4-HMAC-SHA256 Credential={id}/{scope},SignedHeaders={names},Signature={signature}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::secret::Secret;

    /// The examples in the reference of the S3 API.
    #[test]
    fn published_signatures() {
        let credentials = Credentials {
            id: Secret::new("AKIAIOSFODNN7EXAMPLE".into()),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            token: None,
        };
        let empty = hex(&sha256(b""));
        let body = hex(&sha256(b"Welcome to Amazon S3."));
        type Example<'a> = (
            &'a str,
            &'a str,
            &'a str,
            &'a [(&'a str, &'a str)],
            &'a str,
            &'a str,
        );
        let all: [Example<'_>; 4] = [
            (
                "GET",
                "/test.txt",
                "",
                &[("range", "bytes=0-9")],
                &empty,
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "PUT",
                "/test%24file.text",
                "",
                &[
                    ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                    ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ],
                &body,
                "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            ),
            (
                "GET",
                "/",
                "lifecycle=",
                &[],
                &empty,
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET",
                "/",
                "max-keys=2&prefix=J",
                &[],
                &empty,
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ];
        for (method, path, query, more, payload, wanted) in all {
            let mut headers = vec![
                (
                    "host".to_owned(),
                    "examplebucket.s3.amazonaws.com".to_owned(),
                ),
                ("x-amz-content-sha256".to_owned(), payload.to_owned()),
                ("x-amz-date".to_owned(), "20130524T000000Z".to_owned()),
            ];
            headers.extend(more.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())));
            let request = Unsigned {
                method,
                path,
                query,
                headers: &headers,
                payload,
            };
            let signed = authorization(&request, &credentials, "us-east-1", 1_369_353_600);
            assert!(signed.ends_with(wanted), "{method} {path}: {signed}");
            assert!(!signed.contains("wJalr"));
        }
    }

    #[test]
    fn urls() {
        assert_eq!(encode(b"a b/c%\xc3\xa4~", true), "a%20b/c%25%C3%A4~");
        assert_eq!(encode(b"a/b+", false), "a%2Fb%2B");
    }
}
