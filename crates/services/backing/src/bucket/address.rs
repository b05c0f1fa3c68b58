//! The location of a bucket: `s3://BUCKET/PREFIX`, and its server.

use crate::bucket::secret::Settings;
use crate::error::Error;

/// The address `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub bucket: String,
    /// The path in the bucket, with a leading slash. `/` is the bucket itself.
    pub path: Vec<u8>,
}

/// The prefix of addresses of buckets.
pub const SCHEME: &[u8] = b"s3://";

impl Address {
    /// Parses an address. None: `text` is a path rather than an address.
    pub fn parse(text: &[u8]) -> Option<Result<Address, Error>> {
        let rest = text.strip_prefix(SCHEME)?;
        let unusable = |why| Some(Err(Error::Unusable(why)));
        let end = rest.iter().position(|&b| b == b'/').unwrap_or(rest.len());
        let shown = String::from_utf8_lossy(text);
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || b".-_".contains(b);
        let bucket = match std::str::from_utf8(&rest[..end]) {
            Ok(name) if (3..=255).contains(&end) && name.bytes().all(|b| is_name(&b)) => name,
            _ => {
                return unusable(format!(
                    "'{shown}' names no bucket; write for example s3://my-bucket/results"
                ));
            }
        };
        if std::str::from_utf8(rest).is_err() {
            return unusable(format!(
                "'{shown}' isn't UTF-8, as keys of a bucket must be"
            ));
        }
        let path = match &rest[end..] {
            b"" => b"/".to_vec(),
            path => path.to_vec(),
        };
        let parts = || path[1..].split(|&b| b == b'/');
        let last = parts().count() - 1;
        let odd = parts().enumerate().any(|(i, part)| match part {
            b"" => i != last,
            part => part == b"." || part == b"..",
        });
        if odd {
            return unusable(format!(
                "'{shown}' has an empty part, or '.' or '..'; those name no directory of a bucket"
            ));
        }
        Some(Ok(Address {
            bucket: bucket.to_owned(),
            path,
        }))
    }
}

/// The server of a bucket, and the form of its requests' paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `https` or `http`.
    pub scheme: String,
    /// Host name and port, as in the header `host`.
    pub host: String,
    /// The part of a request's path before the key: `/` or `/BUCKET/`.
    pub base: String,
    pub region: String,
}

impl Server {
    /// Returns the server of a bucket. A bucket of AWS is named in the host name, a bucket of
    /// another server in the path.
    ///
    /// # Errors
    /// A message: the endpoint in the settings isn't a URL.
    pub fn new(bucket: &str, settings: &Settings) -> Result<Server, Error> {
        let region = settings
            .region
            .clone()
            .unwrap_or_else(|| "us-east-1".into());
        let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if region.is_empty() || !region.bytes().all(fits) {
            let why = format!("the region '{region}' is none; set AWS_REGION");
            return Err(Error::Unusable(why));
        }
        let Some(endpoint) = &settings.endpoint else {
            let domain = if region.starts_with("cn-") {
                "amazonaws.com.cn"
            } else {
                "amazonaws.com"
            };
            let host = format!("s3.{region}.{domain}");
            // The server's certificate doesn't cover a bucket name with dots or capitals.
            let is_label = bucket.bytes().all(|b| fits(b) && !b.is_ascii_uppercase());
            let (host, base) = if is_label {
                (format!("{bucket}.{host}"), "/".to_owned())
            } else {
                (host, format!("/{bucket}/"))
            };
            return Ok(Server {
                scheme: "https".into(),
                host,
                base,
                region,
            });
        };
        let wrong = || {
            Error::Unusable(format!(
                "AWS_ENDPOINT_URL is '{endpoint}'; write it as https://HOST or http://HOST:PORT"
            ))
        };
        let (scheme, rest) = endpoint.split_once("://").ok_or_else(wrong)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_host = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b);
        if !matches!(scheme, "http" | "https") || host.is_empty() || !host.bytes().all(is_host) {
            // The message leaves out the endpoint, which may contain a password.
            return Err(if endpoint.contains('@') {
                let why = "AWS_ENDPOINT_URL has a user name in it; credentials belong elsewhere";
                Error::Unusable(why.into())
            } else {
                wrong()
            });
        }
        let path = path.trim_end_matches('/');
        let base = match path {
            "" => format!("/{bucket}/"),
            path => format!("/{path}/{bucket}/"),
        };
        Ok(Server {
            scheme: scheme.into(),
            host: host.into(),
            base,
            region,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String)> {
        let address = Address::parse(text.as_bytes())?.ok()?;
        Some((address.bucket, String::from_utf8(address.path).unwrap()))
    }

    #[test]
    fn addresses() {
        let both = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(parse("s3://abc"), both("abc", "/"));
        assert_eq!(parse("s3://abc/"), both("abc", "/"));
        assert_eq!(parse("s3://abc/x y/ä/"), both("abc", "/x y/ä/"));
        for path in ["", "/s3://abc", "./s3://abc", "s3:/abc"] {
            assert!(Address::parse(path.as_bytes()).is_none(), "{path}");
        }
        for bad in [
            "s3://",
            "s3:///x",
            "s3://ab",
            "s3://a b c",
            "s3://abc//x",
            "s3://abc/../x",
        ] {
            assert!(Address::parse(bad.as_bytes()).unwrap().is_err(), "{bad}");
        }
        assert!(Address::parse(b"s3://abc/\xff").unwrap().is_err());
    }

    #[test]
    fn servers() {
        let mut settings = Settings {
            region: Some("eu-x-1".into()),
            ..Settings::default()
        };
        let s = Server::new("abc", &settings).unwrap();
        assert_eq!(
            (s.host.as_str(), s.base.as_str()),
            ("abc.s3.eu-x-1.amazonaws.com", "/")
        );
        let s = Server::new("a.b.c", &settings).unwrap();
        assert_eq!(
            (s.host.as_str(), s.base.as_str()),
            ("s3.eu-x-1.amazonaws.com", "/a.b.c/")
        );
        settings.endpoint = Some("http://127.0.0.1:9000/".into());
        let s = Server::new("abc", &settings).unwrap();
        assert_eq!(
            (s.host.as_str(), s.base.as_str()),
            ("127.0.0.1:9000", "/abc/")
        );
        settings.endpoint = Some("https://h/s3".into());
        assert_eq!(Server::new("abc", &settings).unwrap().base, "/s3/abc/");
        for bad in ["h", "ftp://h", "http://", "http://h h"] {
            settings.endpoint = Some(bad.into());
            assert!(Server::new("abc", &settings).is_err(), "{bad}");
        }
        settings.endpoint = Some("http://user:password@h".into());
        assert!(
            !Server::new("abc", &settings)
                .unwrap_err()
                .to_string()
                .contains("password")
        );
    }
}
