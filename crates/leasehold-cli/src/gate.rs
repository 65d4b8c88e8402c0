//! Refuses requests that another site's page makes a browser send.
//!
//! Three ways in are shut. A page of another site may send requests here (cross-site requests). So
//! changes need a secret token, and an `Origin` that a browser sets and no page can. It may have
//! its own name point here (DNS rebinding), and the browser takes it for this site. So `Host` must
//! be an address, `localhost`, or a given name. It may show this page in a frame and have it
//! clicked: the page forbids that.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, Uri};

pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-leasehold-token");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The path of the page itself, to which a link may lead from anywhere.
pub(crate) const PAGE: &str = "/";

#[derive(Debug)]
pub(crate) struct Gate {
    /// Names by which this is reached, besides its addresses.
    pub(crate) hosts: Vec<String>,
    /// The token that changes need; without it all are refused.
    pub(crate) token: Option<String>,
}

/// Why a request is not answered.
pub(crate) type Refusal = (StatusCode, &'static str);

impl Gate {
    /// Passes requests of this program's own page.
    pub(crate) fn pass(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let host = only(headers, &HOST)?.ok_or((StatusCode::BAD_REQUEST, "no host is named"))?;
        if !self.is_ours(host) || uri.authority().is_some_and(|named| named.as_str() != host) {
            let why = "this server does not know that name; use its address, or name it with \
                       --host";
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        let reads = method == Method::GET;
        let foreign = Err((StatusCode::FORBIDDEN, "the request comes from a page of another site"));
        match only(headers, &ORIGIN)? {
            Some(origin) if !is_origin_of(origin, host) => return foreign,
            None if !reads => {
                return Err((StatusCode::FORBIDDEN, "the `Origin` header of this page is missing"));
            }
            _ => {}
        }
        match only(headers, &FETCH_SITE)? {
            None | Some("same-origin") => {}
            Some("none") if reads => {}
            Some(_) if reads && uri.path() == PAGE => {}
            Some(_) => return foreign,
        }
        if !reads {
            self.check_token(only(headers, &TOKEN)?)?;
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        // With a user in it.
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host();
        let address = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|ours| ours.eq_ignore_ascii_case(name))
    }

    fn check_token(&self, shown: Option<&str>) -> Result<(), Refusal> {
        let Some(token) = &self.token else {
            return Err((
                StatusCode::FORBIDDEN,
                "this page only shows; start it with \
                                                --allow-release",
            ));
        };
        if shown.is_some_and(|shown| is_same(shown.as_bytes(), token.as_bytes())) {
            return Ok(());
        }
        Err((
            StatusCode::FORBIDDEN,
            "the token is missing or wrong: use the address that was printed",
        ))
    }
}

/// The only header of this name; browsers do not send several.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let (value, more) = (values.next(), values.next());
    match (value.map(|value| value.to_str()), more) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value)),
        _ => Err((StatusCode::BAD_REQUEST, "a header is sent twice, or is not text")),
    }
}

fn is_origin_of(origin: &str, host: &str) -> bool {
    let named = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    named.is_some_and(|named| named.eq_ignore_ascii_case(host))
}

/// Takes the same time wherever they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(token: Option<&str>) -> Gate {
        Gate { hosts: vec!["locks.example".to_owned()], token: token.map(str::to_owned) }
    }

    fn ask(gate: &Gate, request: &str, headers: &[(&'static str, &str)]) -> Result<(), u16> {
        let (method, uri) = request.split_once(' ').unwrap();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let passed = gate.pass(&method.parse().unwrap(), &uri.parse().unwrap(), &map);
        passed.map_err(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_name_that_points_here_is_not_ours_unless_it_was_given() {
        let gate = gate(None);
        for host in ["127.0.0.1:9465", "[::1]:9465", "10.0.0.7", "localhost:1", "LOCKS.example:80"]
        {
            assert_eq!(ask(&gate, "GET /events", &[("host", host)]), Ok(()), "{host}");
        }
        for host in
            ["evil.example:9465", "127.0.0.1.evil.example", "a@127.0.0.1", "", "localhost.evil"]
        {
            let answer = ask(&gate, "GET /events", &[("host", host)]);
            assert!(matches!(answer, Err(400 | 421)), "{host}: {answer:?}");
        }
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(ask(&gate, "GET /events", &twice), Err(400));
        assert_eq!(ask(&gate, "GET /events", &[]), Err(400));
        assert_eq!(
            ask(&gate, "GET http://evil.example/events", &[("host", "localhost")]),
            Err(421)
        );
    }

    #[test]
    fn another_sites_page_reads_nothing_but_may_lead_here() {
        let gate = gate(None);
        let of = |site| vec![("host", "localhost:9"), ("sec-fetch-site", site)];
        for site in ["cross-site", "same-site", "nonsense"] {
            assert_eq!(ask(&gate, "GET /events", &of(site)), Err(403), "{site}");
            assert_eq!(ask(&gate, "GET /", &of(site)), Ok(()), "{site}");
        }
        assert_eq!(ask(&gate, "GET /events", &of("same-origin")), Ok(()));
        assert_eq!(ask(&gate, "GET /events", &of("none")), Ok(()));
        for origin in ["http://evil.example", "null", "http://localhost", "http://localhost:99"] {
            let headers = [("host", "localhost:9"), ("origin", origin)];
            assert_eq!(ask(&gate, "GET /events", &headers), Err(403), "{origin}");
        }
    }

    #[test]
    fn a_change_needs_the_token_and_this_pages_origin() {
        let (open, shut) = (gate(Some("secret")), gate(None));
        let own = [("host", "localhost:9"), ("origin", "http://localhost:9")];
        let with = |token| [&own[..], &[("x-leasehold-token", token)]].concat();
        assert_eq!(ask(&open, "POST /release", &with("secret")), Ok(()));
        assert_eq!(ask(&open, "POST /release", &with("secreT")), Err(403));
        assert_eq!(ask(&open, "POST /release", &with("")), Err(403));
        assert_eq!(ask(&open, "POST /release", &own), Err(403));
        assert_eq!(ask(&shut, "POST /release", &with("")), Err(403));
        let no_origin = [("host", "localhost:9"), ("x-leasehold-token", "secret")];
        assert_eq!(ask(&open, "POST /release", &no_origin), Err(403));
        let typed = [&with("secret")[..], &[("sec-fetch-site", "none")]].concat();
        assert_eq!(ask(&open, "POST /release", &typed), Err(403));
    }
    #[test]
    fn a_change_without_an_origin_is_answered_with_what_it_lacks() {
        let mut headers = HeaderMap::new();
        headers.append("host", "localhost:9".parse().unwrap());
        headers.append("x-leasehold-token", "secret".parse().unwrap());
        let why = |method: Method, headers: &HeaderMap| {
            gate(Some("secret")).pass(&method, &Uri::from_static("/release"), headers).unwrap_err()
        };
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            let (status, why) = why(method.clone(), &headers);
            assert_eq!(status, StatusCode::FORBIDDEN, "{method}");
            assert!(why.contains("`Origin` header of this page is missing"), "{method}: {why}");
        }
        headers.append("origin", "http://evil.example".parse().unwrap());
        assert!(why(Method::POST, &headers).1.contains("another site"));
    }
}
