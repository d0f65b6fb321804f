"""The page as an oracle: people label in a browser, and the run goes on in the same process."""

import threading
import webbrowser
from contextlib import suppress

from ralseg.annotation.page.desk import Desk
from ralseg.annotation.page.server import Hosts, make_app
from ralseg.annotation.page.serving import Address, PageServer
from ralseg.annotation.people import PeopleOracle
from ralseg.annotation.request import Request
from ralseg.errors import ConfigError
from ralseg.labels.news import News
from ralseg.labels.oracle import LabellingJob
from ralseg.runtime import distributed
from ralseg.runtime.signals import Interrupted, interrupts

FAREWELL_SECONDS = 75.0
"""How long open pages may take to hear that the run is over; hidden ones ask once a minute."""
_LOOK_SECONDS = 0.25


class PageOracle(PeopleOracle):
    """Serves a page that people label in: the region in its image, with the model's guess to correct.

    The page has one address for the whole run, with a secret in it. While the model trains, it shows how far that is;
    then it goes on with the next regions. Whatever was saved is on disk: a run that is killed goes on with it.

    Args:
        host: The address to listen at. Any but this machine's own lets others in, unencrypted: they need the secret.
        port: The port; None: the one from before, else a free one.
        open_browser: Also open the page in this machine's browser.
        min_answers: The model goes on with so many answers of a step where somebody says so; None: with all.
        reserves: Regions of a step that may take the place of those that people skip: the policy's next best.
        reask: Share of the answers that a second annotator gives, too, without seeing the first one's.

    Examples:
        >>> PageOracle(min_answers=12).reserves
        8
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        open_browser: bool = False,
        min_answers: int | None = None,
        reserves: int = 8,
        reask: float = 0.05,
    ) -> None:
        super().__init__(min_answers, reserves, reask)
        self.host, self.port, self.open_browser = host, port, open_browser
        self.desk: Desk | None = None
        self.address: Address | None = None
        self._server: PageServer | None = None

    def open(self, job: LabellingJob) -> None:
        """Start to serve: a page that was left open finds the run again, whatever it is doing."""
        super().open(job)
        if distributed.size() > 1:
            raise ConfigError(
                f"trainer.devices: {distributed.size()} processes would wait for people, and give up; label with one "
                "(--trainer.devices 1 --trainer.num_nodes 1)"
            )
        if self._server is not None:
            return
        self.desk = Desk(job, "/".join(self.folder.parent.absolute().parts[-2:]), self.answers)
        self.address = Address(self.folder, self.host, self.port)
        self._server = PageServer(make_app(self.desk, self.address.token, Hosts(self.host)), self.address)
        self._server.start()
        url = self.address.url()
        print(f"label here: {url}", flush=True)
        if self.host not in ("127.0.0.1", "localhost", "::1"):
            print("others can reach this page, and what they send is not encrypted: give the address to nobody else")
        if self.open_browser:
            threading.Thread(target=lambda: webbrowser.open(url), daemon=True).start()

    def wait(self, request: Request) -> None:
        """Show the request, and return when enough of it is answered; a signal ends the waiting at once."""
        assert self.desk is not None
        self.desk.ask(self.answers)
        try:
            while not self.answers.status().is_complete:
                if interrupts.asked is not None:  # nothing of this step is kept but the answers, which are on disk
                    raise Interrupted(interrupts.asked)
                self.desk.answered.wait(_LOOK_SECONDS)
                self.desk.answered.clear()
        finally:
            self.desk.take()

    def tell(self, news: News) -> None:
        """Show what the run is doing."""
        if self.desk is not None:
            self.desk.tell(news)

    def close(self) -> None:
        """Serve no more, once all open pages know how the run has ended; a signal ends that, too."""
        if self._server is not None and self.desk is not None:
            with suppress(Interrupted):
                self.desk.wait_until_told(FAREWELL_SECONDS)
            self._server.stop()
            self._server = None
