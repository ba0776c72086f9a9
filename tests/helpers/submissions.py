"""What a user asks a site for."""

from bigbatch.cluster.host.profiles import Site, find_site
from bigbatch.cluster.submission import batch_script, resources
from bigbatch.cluster.submission.request_checks import Request

HOME = {"BIGBATCH_HOME": "/home/me/.bigbatch", "XDG_CONFIG_HOME": "/nowhere"}
SEARCH = ("--space", "large_batch", "--trials", "64", "--output", "first one")
GIVEN = Request(arguments=SEARCH, python="/shared/venv/bin/python")


def ask(site: str = "jean_zay", live=None, env=None, **wishes):
    request = Request(**{"account": "abc", **wishes})
    return resources.job_resources(request, find_site(site, HOME), {**HOME, **(env or {})}, live)


def script_of(request: Request, site: Site, env=None, live=None, **more) -> str:
    env = HOME if env is None else env
    return batch_script.render_batch_script(
        request, site, resources.job_resources(request, site, env, live), env, **more
    )
