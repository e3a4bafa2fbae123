/* The sidebar opens at the page that is read. */
addEventListener("DOMContentLoaded", () => {
  const sidebar = document.querySelector(".sidebar-scroll");
  const page = document.querySelector(".sidebar-tree .current-page");
  if (!page) return;
  const above = page.getBoundingClientRect().top - sidebar.getBoundingClientRect().top;
  sidebar.scrollTo({ top: above - sidebar.clientHeight / 2, behavior: "instant" });
});
