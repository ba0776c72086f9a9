"""What a user asks a site for."""

from bigbatch.cluster.host.profiles import find_site
from bigbatch.cluster.submission import resources
from bigbatch.cluster.submission.request_checks import Request

HOME = {"BIGBATCH_HOME": "/home/me/.bigbatch", "XDG_CONFIG_HOME": "/nowhere"}
SEARCH = ("--space", "large_batch", "--trials", "64", "--study", "first one")
GIVEN = Request(arguments=SEARCH, python="/shared/venv/bin/python")


def ask(site: str = "jean_zay", live=None, env=None, **wishes):
    request = Request(**{"account": "abc", **wishes})
    return resources.job_resources(request, find_site(site, HOME), env={**HOME, **(env or {})}, live=live)
